"""Beam job that turns documents into masked pre-training records, in memory independent of the corpus size.

    text ──► documents as token ids ──► pools of documents ──► masked instances ──► records ──► sorted shards

A random next segment comes from a document of the same pool: documents are assigned to pools by the digest of their
text, so a pool is a random sample of the corpus. Data moves between the steps through an exchange (`exchange/`), so no
worker ever holds more than a pool, or a part of a shard.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import apache_beam as beam

from beam_jobs.exchange.choice import choose_exchange
from beam_jobs.pairing import MASKING, WRITING, BuildRecords, PoolDocuments, RecordRule, WriteShards, plan_shards
from beam_jobs.publishing import JobFolders, check_place_of, publish_result, read_published
from beam_jobs.reading import (
    COUNTERS,
    READING,
    ReadCorpus,
    WriteResults,
    name_inputs,
    read_results,
    tell_ignored,
    tell_rejected,
)
from beam_jobs.running import run_pipeline
from beam_jobs.storage import BeamStorage
from beam_jobs.tokenizing import TOKENIZING, MeasureCorpus, TokenizeDocuments
from keras_bert_flow.config.text import CorpusConfig, RecordsConfig
from keras_bert_flow.console.job_progress import plan_parts
from keras_bert_flow.files.inputs import hold
from keras_bert_flow.files.paths import check_local
from keras_bert_flow.results.manifest import FileSummary
from keras_bert_flow.results.publishing import Contents
from keras_bert_flow.results.stages.keys import corpus_digests, hold_corpus
from keras_bert_flow.results.stages.records import RECORDS, records_key
from keras_bert_flow.text.corpus.lines import check_rejected, explain_lack
from keras_bert_flow.text.objectives.objective import check_joining, describe_mistaken, find_objective
from keras_bert_flow.text.tokenizers.files import (
    copy_tokenizer,
    describe_rules,
    list_tokenizer_files,
    read_tokenizer_file,
)
from keras_bert_flow.text.tokenizers.tokenizer import describe_lost


def build_records(
    corpus: CorpusConfig,
    records: RecordsConfig,
    vocabulary_file: str | Path,
    cased: bool,
    output: str | Path,
    seed: int = 1,
    options: Sequence[str] = (),
) -> str | Path:
    """Publish a folder of TFRecord files with its tokenizer and a manifest, unless it already exists.

    The bytes depend only on the text, the vocabulary, the settings and the seed.

    Args:
        corpus: the text.
        records: objective, lengths, masks and shards.
        vocabulary_file: a vocab.txt, or a tokenizer.json.
        cased: whether a vocab.txt keeps case; a tokenizer.json says so itself.
        output: the folder.
        seed: seed of every random choice.
        options: Beam's options.
    Raises:
        FileNotFoundError: an input is missing.
        ValueError: the vocabulary or the corpus is unusable, or too much of its text was rejected; the message says
            why.
    """
    check_place_of(output)
    vocabulary_file = check_local(vocabulary_file, "The vocabulary")
    storage = BeamStorage(options)
    files, inputs = hold_corpus(corpus, storage)
    inputs |= hold(*list_tokenizer_files(vocabulary_file))
    tokenizer = read_tokenizer_file(vocabulary_file, cased)
    check_joining(records.objective, tokenizer)

    def build(folders: JobFolders) -> Contents:
        tell_ignored(corpus, storage)
        written, counters = _run(files, RecordRule(records, tokenizer, seed), folders, options)
        copy_tokenizer(vocabulary_file, cased, folders.work)
        facts = {"cased": tokenizer.cased, "seed": seed, "vocabulary_size": tokenizer.vocabulary_size}
        facts |= describe_rules(tokenizer)
        return Contents(records.model_dump() | facts, corpus_digests(files, storage), counters, written)

    key = records_key(files, records, vocabulary_file, cased, seed, storage)
    folder = publish_result(output, RECORDS, key, build, options, inputs)
    check_rejected(read_published(folder).counters, corpus.max_rejected_share)  # an old one may have a looser limit
    return folder


def _run(
    corpus: CorpusConfig, rule: RecordRule, folders: JobFolders, options: Sequence[str]
) -> tuple[list[FileSummary], dict[str, int]]:
    def build(pipeline: beam.Pipeline) -> None:
        exchange = choose_exchange(options, folders.scratch, folders.is_shared)
        read = pipeline | "ReadCorpus" >> ReadCorpus(corpus, exchange, BeamStorage(options))
        tokenize = TokenizeDocuments(rule.tokenizer, split_lines=corpus.lines == "paragraphs")
        tokenized = read.texts | "TokenizeDocuments" >> beam.ParDo(tokenize).with_outputs(COUNTERS, main="documents")
        size = tokenized.documents | "MeasureCorpus" >> MeasureCorpus(rule.config, exchange)
        kept = tokenized.documents | "KeepDocuments" >> exchange.spread("tokenized")
        pools = {"documents": kept, "size": size} | "PoolDocuments" >> PoolDocuments(rule, exchange)
        built = pools | "BuildRecords" >> beam.ParDo(BuildRecords(rule)).with_outputs(COUNTERS, main="records")
        plan = size | "PlanShards" >> beam.Map(plan_shards, rule.config, rule.tokenizer.vocabulary_size)
        files = {"records": built.records, "plan": plan} | "WriteShards" >> WriteShards(
            folders.place, rule.seed, exchange
        )
        counters = (read.counters, tokenized[COUNTERS], built[COUNTERS]) | "FlattenCounters" >> beam.Flatten()
        _ = {"results": files, COUNTERS: counters} | "WriteSummaries" >> WriteResults(folders.place)

    plan_parts(READING, TOKENIZING, MASKING, WRITING)
    run_pipeline(build, options, folders.scratch)
    results, counters = read_results(folders.place)
    counters = tell_rejected(counters, folders.work, corpus.max_rejected_share)
    objective = find_objective(rule.config.objective)
    if counters.get("documents_train", 0) < objective.needed_documents or not counters.get("instances_train"):
        facts, remedy = explain_lack(counters)
        raise ValueError(
            f"A corpus must hold {objective.needed}. "
            f"Received: {name_inputs(corpus.input)}, with {counters.get('documents_train', 0)} to train on and "
            f"{counters.get('documents_held_out', 0)} held out{facts and f'; {facts}'}. {remedy}"
        )
    for line in (*describe_lost(counters, "the corpus"), *describe_mistaken(objective, counters)):
        logging.getLogger("keras_bert_flow").warning("%s", line)
    return [FileSummary(*summary) for summary in results], counters

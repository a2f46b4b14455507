"""The stage that makes masked records of a corpus."""

from pathlib import Path

from keras_bert_flow.config.corpus import CorpusConfig
from keras_bert_flow.config.records import RecordsConfig
from keras_bert_flow.stages.digests import corpus_digests, digest_tokenizer, list_corpus_settings
from keras_bert_flow.stages.stage import Stage
from keras_bert_flow.text.corpus.storage import LOCAL, Storage

RECORDS = Stage("records", "records", made_by="beam_jobs.build_records")


def records_key(
    corpus: CorpusConfig,
    records: RecordsConfig,
    vocabulary_file: Path,
    cased: bool,
    seed: int,
    storage: Storage = LOCAL,
) -> str:
    settings = {
        "corpus": list_corpus_settings(corpus),
        "records": records.model_dump(),
        "cased": cased,
        "seed": seed,
    }
    inputs = corpus_digests(corpus, storage) | digest_tokenizer(vocabulary_file, "vocabulary")
    return RECORDS.make_key(settings, inputs)

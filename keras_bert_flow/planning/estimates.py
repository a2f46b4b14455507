"""Estimate records, steps and time of a run from the sizes of its inputs, with the basis of each number."""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.vocabulary import VocabularyConfig
from keras_bert_flow.models.flops import count_flops
from keras_bert_flow.models.sizes import resolve_shape
from keras_bert_flow.planning.corpus_sample import CorpusSample, read_sample
from keras_bert_flow.text.corpus.documents import Document
from keras_bert_flow.text.cutting import count_sequences
from keras_bert_flow.text.masking import MaskingRule, count_masks
from keras_bert_flow.text.objectives.instances import build_instances
from keras_bert_flow.text.objectives.objective import InstanceRule
from keras_bert_flow.text.objectives.registry import find_objective
from keras_bert_flow.text.pool import TokenizedDocument
from keras_bert_flow.text.tokenizers.fast_file import cut_long_words, make_cutting_tokenizer
from keras_bert_flow.text.tokenizers.files import read_pieces, read_tokenizer_file
from keras_bert_flow.text.tokenizers.lost_characters import count_lost, describe_lost
from keras_bert_flow.text.tokenizers.normalization import normalize_text
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary.learner import learn_vocabulary

MATRIX_WIDTH = 1024  # of the timed matrix product
TIMED_SECONDS, TIMINGS = 0.1, 10  # the best of several: what the machine does when nothing else runs


@dataclass(frozen=True)
class CorpusEstimate:
    """Estimated number of tokens in a corpus, from a sample.

    Attributes:
        sample: the sampled documents.
        tokenized: the same documents as token ids.
        tokens: estimated number of tokens in the whole corpus.
        basis: description of what the numbers are derived from.
        lost: counters of the characters of the sample that the tokenizer loses; see `lost_characters`.
    """

    sample: CorpusSample
    tokenized: tuple[TokenizedDocument, ...]
    tokenizer: Tokenizer
    tokens: float
    basis: str
    lost: Mapping[str, int]


def estimate_corpus(config: PipelineConfig, files: Sequence[str], vocabulary: Path | None) -> CorpusEstimate | None:
    """Tokenize a sample of a corpus and estimate the total; None if its first documents are too long to sample.

    Args:
        vocabulary: tokenizer file; if None, a vocabulary is learnt from the sample.
    Raises:
        ValueError: the vocabulary has no room for the characters of the sample.
    """
    sample = read_sample(config.corpus, files)
    texts = [sentence for document in sample.documents for sentence in document.sentences]
    if not texts:
        return None
    cased = config.vocabulary.cased
    tokenizer = read_tokenizer_file(vocabulary, cased) if vocabulary else _learn_tokenizer(texts, config.vocabulary)
    tokenized = tuple(filter(None, (_tokenize(document, tokenizer) for document in sample.documents)))
    tokens = sum(len(document.token_ids) for document in tokenized) * sample.total_bytes / sample.read_bytes
    source = vocabulary or "a vocabulary learnt from it"
    basis = f"{len(sample.documents):,} documents, {sample.read_bytes / 1e6:.2f} MB, encoded with {source}"
    lost: Counter = Counter()
    for text in texts:
        lost.update(count_lost(tokenizer, text))
    return CorpusEstimate(sample, tokenized, tokenizer, tokens, basis, lost)


def count_records(config: PipelineConfig, estimate: CorpusEstimate) -> float:
    """Return the estimated number of training records from a corpus, scaled up from the sample."""
    records, tokenizer = config.records, estimate.tokenizer
    rule = InstanceRule(
        records.objective,
        records.sequence_length,
        records.short_fraction,
        tokenizer.cls_id,
        tokenizer.sep_id,
        MaskingRule.of(tokenizer, records.masked_fraction, records.max_predictions, records.mask_unit),
    )
    made = build_instances(estimate.tokenized, 1, rule, config.seed)
    count = sum(len(instances.rows.lengths) for instances in made)
    share = estimate.sample.total_bytes / estimate.sample.read_bytes
    return count * share * (1 - records.held_out_fraction) * records.duplication


def estimate_pretraining(config: PipelineConfig, estimate: CorpusEstimate | None) -> list[str]:
    """Return lines on the tokens, records, steps and time of each phase; `estimate` is None if unavailable."""
    lines, total = [], 0.0
    if estimate is not None:
        lines.append(f"Tokens: about {estimate.tokens:,.0f} ({estimate.basis}).")
        lines += [f"Lost: {line}" for line in describe_lost(estimate.lost, "the sample")]
    trained = [] if config.has_own_teacher else [("Pre-training", phase) for phase in config.phases]
    trained += [("Distillation", config.student)] if config.distillation else []
    for title, phase in trained:
        records, training = phase.records, phase.pretraining
        operations = training.total_steps * training.batch_size * _count_flops(phase)
        if title == "Distillation" and not config.has_own_teacher:
            operations += training.total_steps * training.batch_size * _count_flops(config.phases[-1], is_teacher=True)
        total += operations
        passes = ""
        if estimate is not None:
            count = count_records(phase, estimate)
            length = training.sequence_length or records.sequence_length
            sequences = count * count_sequences(records.sequence_length, length)
            share = training.total_steps * training.batch_size / max(1.0, sequences)
            passes = f" about {share:,.1f} passes over the records,"
            if title != "Distillation" or config.has_own_teacher:  # else it uses the records of the previous phase
                lines.append(f"Records: about {count:,.0f} of {records.sequence_length} tokens, from the same sample.")
        lines.append(
            f"{title}: {training.total_steps:,} steps of {training.batch_size} sequences,{passes} "
            f"{operations:.3g} floating-point operations."
        )
    return [*lines, _estimate_time(total, config.pretraining.peak_flops)]


def _learn_tokenizer(texts: Iterable[str], vocabulary: VocabularyConfig) -> Tokenizer:
    counts: Counter = Counter()
    cuts = vocabulary.long_words == "characters"
    for text in texts:
        words = normalize_text(text, vocabulary.cased).split()
        counts.update(cut_long_words(words) if cuts else words)
    size, least, han = vocabulary.size, vocabulary.min_character_count, vocabulary.max_cjk_characters
    pieces = learn_vocabulary(counts, size, least, han)
    return (make_cutting_tokenizer if cuts else WordPieceTokenizer)(pieces, vocabulary.cased)


def _tokenize(document: Document, tokenizer: Tokenizer) -> TokenizedDocument | None:
    sentences = [ids for ids in tokenizer.encode_batch(document.sentences) if len(ids)]
    if not sentences:
        return None
    lengths = np.array([len(ids) for ids in sentences], np.int32)
    return TokenizedDocument(document.id, np.concatenate(sentences).astype(np.int32), lengths)


def estimate_finetuning(config: PipelineConfig, examples: int) -> list[str]:
    """Return lines on the steps of fine-tuning, counting one row per example; long texts may take several."""
    settings = config.finetuning
    runs, steps_per_epoch = len(settings.seeds), -(-examples // settings.batch_size)
    steps, most = steps_per_epoch * settings.epochs, steps_per_epoch * max(settings.epochs, settings.random_max_epochs)
    random = f" and at most {most:,} in each of {runs} from random weights" if settings.compare_random else ""
    extras = [name for name, value in (("A grid", settings.grid), ("Fewer labels", settings.label_counts)) if value]
    grid = "".join(f" {name} come{'s' if name == 'A grid' else ''} on top." for name in extras)
    return [
        f"Fine-tuning: {examples:,} examples, {steps:,} steps of {settings.batch_size} in each of {runs} runs{random}, "
        f"where each example is one row.{grid}"
    ]


def measure_rate() -> float:
    """Measure the FLOP/s of float32 matrix products in NumPy on this processor, at its best moment."""
    matrix = np.ones((MATRIX_WIDTH, MATRIX_WIDTH), np.float32)
    matrix @ matrix  # starts the threads
    return max(_time_products(matrix) for _ in range(TIMINGS))


def _time_products(matrix: np.ndarray) -> float:
    started, products = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - started) < TIMED_SECONDS:
        matrix @ matrix
        products += 1
    return products * 2 * MATRIX_WIDTH**3 / elapsed


def _estimate_time(operations: float, peak_flops: float | None) -> str:
    if peak_flops is not None:
        return f"Time of pre-training: at least {_show(operations / peak_flops)} at pretraining.peak_flops."
    rate = measure_rate()
    return (
        f"Time of pre-training: at least {_show(operations / rate)} on this machine's processor, where numpy now "
        f"multiplies float32 matrices at {rate / 1e9:,.0f} GFLOP/s. For an accelerator set pretraining.peak_flops."
    )


def _count_flops(config: PipelineConfig, is_teacher: bool = False) -> int:
    """Return the FLOPs of one sequence in training, or of the forward pass alone for a teacher."""
    model, records, vocabulary = config.model, config.records, config.vocabulary
    pieces = len(read_pieces(vocabulary.file)) if vocabulary.file else vocabulary.size
    length = config.pretraining.sequence_length or records.sequence_length
    share, masks = config.pretraining.masked_fraction, records.max_predictions
    if share is None and length < records.sequence_length:
        share = records.masked_fraction
    shape, objective = resolve_shape(model, pieces), find_objective(records.objective)
    flops = count_flops(
        shape,
        length,
        masks if share is None else count_masks(length, share),
        use_pooler=objective.has_pairs,
        bag_of_words=config.pretraining.bag_of_words > 0,
        generator=shape.narrow(config.pretraining.generator_size) if objective.has_generator else None,
    )
    return flops.forward if is_teacher else flops.training


def _show(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.0f} seconds"

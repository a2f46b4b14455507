"""Estimate records, steps and time of a run from the sizes of its inputs, naming what each number is derived from."""

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from keras_bert_flow.config import PipelineConfig
from keras_bert_flow.models.flops import count_flops
from keras_bert_flow.models.sizes import get_size
from keras_bert_flow.text.documents import read_documents
from keras_bert_flow.text.lines import ReadingRule
from keras_bert_flow.text.objectives import MLM, SENTENCE_TASKS
from keras_bert_flow.text.tokenizer import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import read_vocabulary

ASSUMED_BYTES_PER_TOKEN = 4.5  # English with a vocabulary of 30,000
SAMPLE_BYTES = 500_000
MATRIX_WIDTH = 1024  # of the product that is timed
TIMED_SECONDS = 0.3
PACKED = (".gz", ".bz2", ".xz", ".zst", ".parquet")


def measure_bytes_per_token(config: PipelineConfig, files: Sequence[str], vocabulary: Path | None) -> tuple[float, str]:
    """Return UTF-8 bytes a token of the beginning of the corpus, and in words what the number is derived from."""
    if vocabulary is None:
        return ASSUMED_BYTES_PER_TOKEN, f"assumed {ASSUMED_BYTES_PER_TOKEN} bytes per token, no vocabulary yet"
    tokenizer = WordPieceTokenizer.from_file(vocabulary, config.vocabulary.cased)
    corpus, size, tokens = config.corpus, 0, 0
    rule = ReadingRule(corpus.text_field, split_lines=False, max_line_bytes=corpus.max_line_bytes)
    for document in (document for path in files for document in read_documents(path, rule)):
        text = "\n".join(document.sentences)
        size, tokens = size + len(text.encode()) + 2, tokens + len(tokenizer.encode(text))
        if size >= SAMPLE_BYTES:
            break
    if not tokens:
        return ASSUMED_BYTES_PER_TOKEN, f"assumed {ASSUMED_BYTES_PER_TOKEN} bytes per token, the sample has none"
    return size / tokens, f"{size / tokens:.2f} bytes per token in the first {size / 1e6:.2f} MB, with {vocabulary}"


def estimate_tokens(config: PipelineConfig, files: Sequence[str], vocabulary: Path | None) -> tuple[float, str]:
    """Return the tokens of a corpus, and a line that says what the number is derived from."""
    bytes_per_token, basis = measure_bytes_per_token(config, files, vocabulary)
    tokens = sum(Path(path).stat().st_size for path in files) / bytes_per_token
    more = "; packed files hold more" if any(path.endswith(PACKED) for path in files) else ""
    return tokens, f"Tokens: about {tokens:,.0f} ({basis}{more})."


def estimate_pretraining(config: PipelineConfig, tokens: float | None) -> list[str]:
    """Return lines on the records, steps and time of each phase; `tokens` of the corpus, None where not known."""
    lines, total = [], 0.0
    for phase in config.phases:
        records, training = phase.records, phase.pretraining
        operations = training.total_steps * training.batch_size * _count_flops(phase)
        total += operations
        passes = ""
        if tokens is not None:
            room = records.sequence_length - (2 if records.objective == MLM else 3)  # less [CLS] and [SEP]
            count = tokens * (1 - records.held_out_fraction) * records.duplication / room
            share = training.total_steps * training.batch_size / max(1.0, count)
            passes = f" about {share:,.1f} passes over the records,"
            lines.append(
                f"Records: about {count:,.0f} of {records.sequence_length} tokens, if all are full; padding adds more."
            )
        lines.append(
            f"Pre-training: {training.total_steps:,} steps of {training.batch_size} sequences,{passes} "
            f"{operations:.3g} floating-point operations."
        )
    return [*lines, _estimate_time(total, config.pretraining.peak_flops)]


def estimate_finetuning(config: PipelineConfig, examples: int) -> list[str]:
    """Return a line on the steps of fine-tuning; long texts may take several rows each."""
    settings = config.finetuning
    if not examples:
        return ["Fine-tuning: on the built-in task, not counted."]
    runs = len(settings.seeds) * (2 if settings.compare_random else 1)
    steps = -(-examples // settings.batch_size) * settings.epochs
    grid = " A grid comes on top." if settings.grid else ""
    return [
        f"Fine-tuning: {examples:,} examples, {steps:,} steps of {settings.batch_size} in each of {runs} runs, where "
        f"each example is one row.{grid}"
    ]


def measure_rate() -> float:
    """Return floating-point operations per second of float32 matrix products in numpy on this processor."""
    matrix = np.ones((MATRIX_WIDTH, MATRIX_WIDTH), np.float32)
    matrix @ matrix  # starts the threads
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


def _count_flops(config: PipelineConfig) -> int:
    model, records, vocabulary = config.model, config.records, config.vocabulary
    sizes = get_size(model.size)
    sizes |= {name: getattr(model, name) for name in sizes if getattr(model, name) is not None}
    pieces = len(read_vocabulary(vocabulary.file)) if vocabulary.file else vocabulary.size
    flops = count_flops(
        pieces,
        sizes["num_layers"],
        sizes["hidden_dim"],
        sizes["intermediate_dim"],
        records.sequence_length,
        records.max_predictions,
        use_pooler=records.objective in SENTENCE_TASKS,
    )
    return flops.training


def _show(seconds: float) -> str:
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:,.0f} seconds"

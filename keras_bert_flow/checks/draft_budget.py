"""Inspect a corpus, and choose the size of a model and the length of its training for a time budget."""

import os
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from keras_bert_flow.checks.corpus import CorpusCounts
from keras_bert_flow.checks.draft_table import DraftedTask
from keras_bert_flow.checks.estimates import read_sample
from keras_bert_flow.config.pretraining import ModelConfig
from keras_bert_flow.config.text import CorpusConfig
from keras_bert_flow.models.sizes import count_flops, resolve_shape
from keras_bert_flow.tasks.formats.rows import read_objects
from keras_bert_flow.text.corpus.documents import split_sentences
from keras_bert_flow.text.tokenizers.tokenizer import TOLD_SHARE, lost_share

JSON_SUFFIXES = (".jsonl", ".jsonl.gz")
SENTENCES_OF_A_PARAGRAPH = 1.3  # minimum mean number of sentences per line for lines to be paragraphs
SCRIPTS_WITHOUT_SPACES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "JAVANESE")


@dataclass(frozen=True)
class CorpusLook:
    """Statistics of a corpus, estimated from a sample.

    Attributes:
        files: number of files.
        file_bytes: total size on disk.
        total_bytes: total size, uncompressed.
        documents: estimated number of documents in all files.
        line_words: mean number of words per line in the sample.
        document_lines: mean number of lines per document.
        characters: number of distinct characters in the sample.
        scripts: (name, share of the letters), most common first.
        lines: `paragraphs` or `sentences`.
        text_field: field of the text in .jsonl.
        counts: the doctor's counts for the sample.
    """

    files: int
    file_bytes: int
    total_bytes: float
    documents: float
    line_words: float
    document_lines: float
    characters: int
    scripts: tuple[tuple[str, float], ...]
    lines: str
    text_field: str
    counts: CorpusCounts

    @property
    def has_letter_marks(self) -> bool:
        """Whether marks that uncased text loses are parts of letters in more than a few characters."""
        return lost_share(self.counts.lost, "stripped_characters") >= TOLD_SHARE

    @property
    def has_spaces(self) -> bool:
        """Whether most of the text has spaces between words."""
        return sum(share for name, share in self.scripts if name in SCRIPTS_WITHOUT_SPACES) < 0.5


def look_at_corpus(files: Sequence[str]) -> CorpusLook:
    """Return statistics of text files, from a sample.

    Raises:
        ValueError: the sample holds no document.
    """
    field = _find_field(files)
    sample = read_sample(CorpusConfig(input=tuple(files), lines="sentences", text_field=field), files)
    documents = sample.documents  # their sentences are the unsplit lines
    if not documents:
        raise ValueError(
            f"A corpus must hold documents. Received: {files[0]}{' and others' * (len(files) > 1)}, in the first "
            "megabyte of which there is none. `kbf doctor` says what is wrong."
        )
    lines = [line for document in documents for line in document.sentences]
    letters = Counter(character for line in lines for character in line if character.isalpha())
    scripts: Counter = Counter()
    for character, count in letters.items():  # by the first words of their Unicode names
        scripts[unicodedata.name(character, "?").split()[0]] += count
    sentences = sum(len(split_sentences(line)) for line in lines)
    counts = CorpusCounts(cased=False)
    is_cut = sentences < SENTENCES_OF_A_PARAGRAPH * len(lines)
    for document in documents:
        counts.add_document(document.sentences, split_lines=not is_cut)
    return CorpusLook(
        files=len(files),
        file_bytes=sum(os.path.getsize(path) for path in files),
        total_bytes=sample.total_bytes,
        documents=len(documents) * sample.total_bytes / max(1, sample.read_bytes),
        line_words=counts.words.total / len(lines),
        document_lines=len(lines) / len(documents),
        characters=len({character for line in lines for character in line}),
        scripts=tuple((name, count / scripts.total()) for name, count in scripts.most_common(3)),
        lines="sentences" if is_cut else "paragraphs",
        text_field=field,
        counts=counts,
    )


def _find_field(files: Sequence[str]) -> str:
    """Return the field with the text in .jsonl: `text`, else the one whose first values are longest."""
    path = next((path for path in files if path.endswith(JSON_SUFFIXES)), None)
    if path is None:
        return "text"
    lengths: Counter = Counter()
    for _, fields in islice(read_objects(Path(path)), 100):
        lengths.update({name: len(value) for name, value in fields.items() if isinstance(value, str)})
    return "text" if "text" in lengths or not lengths else lengths.most_common(1)[0][0]


# Choose the size of a model and the length of its training to fit a time budget on this processor.

# FLOP/s of such small models, relative to large matrix products. The high end sets the number of steps, of which a
# slower machine takes fewer; the low end, of short rows on a busy machine, sets how many rows are worth reading.
EFFICIENCY, LOW_EFFICIENCY = 0.5, 0.25
PRETRAINING_SHARE, FINETUNING_SHARE = 0.45, 0.3  # of the time after `FIXED_MINUTES`
FIXED_MINUTES = 1.0  # to start five commands, and for text, records, baselines and report: of small inputs
DISTILLING_MINUTES = 0.3  # besides, to start one more command and to score its model
LEAST_STAGE_MINUTES = 0.5
LEAST_TOKENS = 1_000_000  # of pre-training, below which it teaches next to nothing: docs/recipes.md
SIZES = ("tiny", "mini", "small", "medium", "base")
TOKENS_PER_PARAMETER = 20  # minimum to make a size worthwhile: Hoffmann et al. 2022, arXiv:2203.15556, table 3
MOST_PASSES = 40  # over the text; more passes teach nothing new
BATCH = 32
LENGTHS = (32, 64, 128, 256)
PIECES_PER_WORD = 1.4
MOST_EPOCHS, LEAST_EPOCHS = 10, 4
SHORT_EPOCHS = 2  # where there is no time for all rows: other rows teach more than the same ones again
PATIENCE_EPOCHS = 3
STARTS = 3
FEW_ROWS, FEWEST_ROWS = 1000, 100  # below `FEW_ROWS`, one seed on more rows says more than two on these
PADDED = 1.4  # positions of a batch, relative to the tokens of its texts, which differ in length
BYTES_PER_TOKEN = 4.0
# (upper limit of the bytes of text, number of pieces of the vocabulary)
VOCABULARIES = ((10e6, 4000), (100e6, 8000), (1e9, 16000), (float("inf"), 30522))
HAN_PIECES = 21128  # the size of the published Chinese vocabulary


@dataclass(frozen=True)
class Budget:
    """Settings that determine the running time.

    Attributes:
        sequence_length: sequence length of the records.
        text_length: sequence length of fine-tuning.
        max_train_examples: None for the whole table.
        enough_for_rows: minutes in which the whole table would be read; None if it is.
        pretraining_minutes, finetuning_minutes: limits of the stages.
    """

    size: str
    vocabulary_size: int
    sequence_length: int
    text_length: int
    steps: int
    warmup_steps: int
    epochs: int
    seeds: tuple[int, ...]
    max_train_examples: int | None
    tokens: int
    parameters: int
    pretraining_minutes: float
    finetuning_minutes: float
    enough_for_rows: float | None = None

    @property
    def max_positions(self) -> int:
        return max(128, self.sequence_length, self.text_length)


def choose_budget(
    minutes: float,
    look: CorpusLook,
    task: DraftedTask,
    examples: int,
    operations_per_second: float,
    dev_rows: int = 0,
    has_student: bool = False,
) -> Budget:
    """Choose the sizes for a corpus and a task within a time budget.

    Args:
        minutes: time for the whole run.
        examples: number of examples in the training table.
        operations_per_second: FLOP/s of large float32 products on this machine; see `checks.estimates.measure_rate`.
        dev_rows: number of examples in the dev table, which is scored after every epoch.
        has_student: whether the model is distilled as well: pre-training then has half of its time, and distillation
            the other half. The size of the model is the same.
    """
    fixed_minutes = FIXED_MINUTES + (DISTILLING_MINUTES if has_student else 0.0)
    pretraining_minutes, finetuning_minutes = (
        max(LEAST_STAGE_MINUTES, round(share * (minutes - fixed_minutes), 1))
        for share in (PRETRAINING_SHARE, FINETUNING_SHARE)
    )
    length = 64 if minutes <= 120 else 128
    available = operations_per_second * EFFICIENCY * 60 * pretraining_minutes
    size, pieces, tokens, parameters, shape = _choose_model(look, length, available)
    if has_student:
        whole, pretraining_minutes = pretraining_minutes, max(LEAST_STAGE_MINUTES, round(pretraining_minutes / 2, 1))
        tokens *= pretraining_minutes / whole
    steps = max(20, int(tokens / (BATCH * length)))
    steps = round(steps, -2) or steps if steps >= 200 else steps
    text_length, row_tokens = _choose_text_length(task, look.has_spaces)
    row = count_flops(shape, row_tokens, 0)
    row_seconds, dev_row_seconds = row.training / operations_per_second, row.forward / operations_per_second
    epochs, seeds, limit = _divide(60 * finetuning_minutes, row_seconds, dev_row_seconds, examples, dev_rows)
    whole = STARTS * 2 * SHORT_EPOCHS * (examples * row_seconds + dev_rows * dev_row_seconds) / LOW_EFFICIENCY
    return Budget(
        *(size, pieces, length, text_length, steps, max(1, min(steps // 10, 100))),
        *(epochs, seeds, limit, steps * BATCH * length, parameters),
        *(pretraining_minutes, finetuning_minutes),
        None if limit is None else FIXED_MINUTES + whole / 60 / FINETUNING_SHARE,
    )


def _choose_model(look: CorpusLook, length: int, operations: float) -> tuple[str, int, float, int, Any]:
    """Return a size, its vocabulary size, number of tokens to train on, number of parameters, and shape.

    It is the largest size that sees enough tokens, or else the smallest.
    """
    pieces = next(pieces for limit, pieces in VOCABULARIES if look.total_bytes < limit)
    # Room for the characters of the script
    pieces = max(pieces, min(30522, 4 * look.characters), 0 if look.has_spaces else HAN_PIECES)
    chosen: Any = None
    for size in SIZES:
        shape = resolve_shape(ModelConfig(size=size, max_positions=512), pieces)
        flops = count_flops(shape, length, round(0.15 * length), use_pooler=False).training
        tokens = min(operations / flops * length, MOST_PASSES * look.total_bytes / BYTES_PER_TOKEN)
        # Matrix products and token embeddings, which are nearly all parameters
        width, inner = shape.hidden_dim, shape.intermediate_dim
        parameters = shape.num_layers * (4 * width * width + 2 * width * inner) + pieces * width
        if chosen is None or tokens >= TOKENS_PER_PARAMETER * parameters:
            chosen = (size, pieces, tokens, parameters, shape)
    return chosen


def _choose_text_length(task: DraftedTask, has_spaces: bool) -> tuple[int, int]:
    """Return a sequence length of fine-tuning, and the positions that a row takes in a batch on average, with padding.

    The length truncates at most 1 in 20 examples, within limits for fast training.
    """
    if not task.lengths or not has_spaces:
        return 128, 128
    longest = sorted(task.lengths)[int(0.95 * (len(task.lengths) - 1))]
    length = next((length for length in LENGTHS if PIECES_PER_WORD * longest + 3 <= length), LENGTHS[-1])
    tokens = PIECES_PER_WORD * sum(task.lengths) / len(task.lengths) + 3
    return length, min(length, round(PADDED * tokens))


def _divide(
    seconds: float, row_seconds: float, dev_row_seconds: float, examples: int, dev_rows: int
) -> tuple[int, tuple[int, ...], int | None]:
    """Return epochs, seeds and a limit on examples such that all runs together fit into the time.

    Each seed is run from pre-trained and random weights and from the initial embeddings, for as many epochs, after each
    of which the dev table is scored.

    Args:
        seconds: of all runs.
        row_seconds, dev_row_seconds: to train on a row and to score one, at the rate of large products.
    """

    def count_epochs(rows: int, seeds: tuple[int, ...], efficiency: float) -> int:
        epoch = (rows * row_seconds + dev_rows * dev_row_seconds) / efficiency
        return int(seconds / (STARTS * len(seeds) * epoch))

    seeds: tuple[int, ...]
    for seeds in ((1, 2, 3), (1, 2)):
        if count_epochs(examples, seeds, LOW_EFFICIENCY) >= LEAST_EPOCHS:
            return min(MOST_EPOCHS, count_epochs(examples, seeds, EFFICIENCY)), seeds, None
    rows = 0
    for seeds in ((1, 2), (1,)):
        epoch = seconds * LOW_EFFICIENCY / (STARTS * len(seeds) * SHORT_EPOCHS)
        rows = int((epoch - dev_rows * dev_row_seconds) / row_seconds)
        if rows >= min(FEW_ROWS, examples):
            break
    rows = max(FEWEST_ROWS, rows)
    epochs = max(SHORT_EPOCHS, min(LEAST_EPOCHS, count_epochs(min(rows, examples), seeds, EFFICIENCY)))
    return epochs, seeds, rows if rows < examples else None

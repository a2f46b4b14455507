"""Choose the size of a model and the length of its training so that they fit in some minutes on this processor."""

from dataclasses import dataclass
from typing import Any

from keras_bert_flow.config.model import ModelConfig
from keras_bert_flow.drafting.task import DraftedTask
from keras_bert_flow.drafting.text import CorpusLook
from keras_bert_flow.models.flops import count_flops
from keras_bert_flow.models.sizes import resolve_shape

EFFICIENCY = 0.2  # of the rate of large products, that training steps of such small models reach; the low end
PRETRAINING_SHARE, FINETUNING_SHARE = 0.5, 0.25  # of the time; the rest is for text, records, baselines and report
SIZES = ("tiny", "mini", "small", "medium", "base")
TOKENS_PER_PARAMETER = 20  # that a size must see to be worth it: Hoffmann et al. 2022, arXiv:2203.15556, table 3
MOST_PASSES = 40  # over the text; more repeat what is known
BATCH, FINETUNING_BATCH = 32, 32
LENGTHS = (32, 64, 128, 256)
PIECES_PER_WORD, PIECES_PER_CHARACTER = 1.4, 1.0
MOST_EPOCHS, LEAST_EPOCHS = 10, 2
BYTES_PER_TOKEN = 4.0
# bytes of text below which a vocabulary has so many pieces
VOCABULARIES = ((10e6, 4000), (100e6, 8000), (1e9, 16000), (float("inf"), 30522))
HAN_PIECES = 21128  # as many as the published Chinese vocabulary


@dataclass(frozen=True)
class Budget:
    """Settings that take time.

    Attributes:
        sequence_length: of the records.
        text_length: of fine-tuning.
        max_train_examples: None for the whole table.
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

    @property
    def max_positions(self) -> int:
        return max(128, self.sequence_length, self.text_length)


def choose_budget(
    minutes: float, look: CorpusLook, task: DraftedTask, examples: int, operations_per_second: float
) -> Budget:
    """Choose sizes for a corpus and a task.

    Args:
        minutes: for the whole run.
        examples: of the training table.
        operations_per_second: of large float32 products here; see `planning.estimates.measure_rate`.
    """
    seconds = 60.0 * minutes
    pieces = choose_vocabulary(look)
    length = 64 if minutes <= 120 else 128
    available = operations_per_second * EFFICIENCY * seconds * PRETRAINING_SHARE
    corpus_tokens = look.total_bytes / BYTES_PER_TOKEN
    chosen: Any = None
    for size in SIZES:  # the smallest anyway, a larger one where it sees enough
        shape = resolve_shape(ModelConfig(size=size, max_positions=512), pieces)
        flops = count_flops(shape, length, round(0.15 * length), use_pooler=False).training
        tokens = min(available / flops * length, MOST_PASSES * corpus_tokens)
        parameters = _count_parameters(shape.num_layers, shape.hidden_dim, shape.intermediate_dim, pieces)
        if chosen is None or tokens >= TOKENS_PER_PARAMETER * parameters:
            chosen = (size, tokens, parameters, flops / length)
    size, tokens, parameters, flops_per_token = chosen
    steps = max(20, int(tokens / (BATCH * length)))
    steps = round(steps, -2) or steps if steps >= 200 else steps
    text_length = choose_length(task, look.has_spaces)
    rows = operations_per_second * EFFICIENCY * seconds * FINETUNING_SHARE / (flops_per_token * text_length)
    epochs, seeds, limit = _divide(rows, examples)
    return Budget(
        *(size, pieces, length, text_length, steps, max(1, min(steps // 10, 100))),
        *(epochs, seeds, limit, steps * BATCH * length, parameters),
    )


def choose_vocabulary(look: CorpusLook) -> int:
    """Return the pieces of a vocabulary: for the size of the text, with room for the characters of its script."""
    size = next(pieces for limit, pieces in VOCABULARIES if look.total_bytes < limit)
    return max(size, min(30522, 4 * look.characters), 0 if look.has_spaces else HAN_PIECES)


def choose_length(task: DraftedTask, has_spaces: bool) -> int:
    """Return the tokens of an example of the task, so that 19 of 20 are not cut, within what is quick to train on."""
    if not task.lengths or not has_spaces:
        return 128
    longest = sorted(task.lengths)[int(0.95 * (len(task.lengths) - 1))]
    return next((length for length in LENGTHS if PIECES_PER_WORD * longest + 3 <= length), LENGTHS[-1])


def _divide(rows: float, examples: int) -> tuple[int, tuple[int, ...], int | None]:
    """Return epochs, seeds and the most examples so that all runs together train on at most so many rows.

    Each seed is run from the pre-trained weights and from random ones, and the latter may take twice the epochs.
    """
    for seeds in ((1, 2, 3), (1,)):
        runs = 3 * len(seeds)
        epochs = int(rows / (runs * examples))
        if epochs >= LEAST_EPOCHS:
            return min(MOST_EPOCHS, epochs), seeds, None
    return LEAST_EPOCHS, (1,), max(100, int(rows / (3 * LEAST_EPOCHS)))


def _count_parameters(layers: int, width: int, inner: int, pieces: int) -> int:
    """Return the parameters of the products and of the token embeddings, which are nearly all of them."""
    return layers * (4 * width * width + 2 * width * inner) + pieces * width

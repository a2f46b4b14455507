"""The inputs that a model directory's tokenizer makes of texts, one row per text or several texts packed into a row."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.data.tasks import halve_widths, make_inputs
from keras_bert_flow.stores.fetching import fetch
from keras_bert_flow.tasks.core.task import TASK_FILE
from keras_bert_flow.tasks.core.texts import encode_examples, make_text_example
from keras_bert_flow.tasks.registry import read_task
from keras_bert_flow.text.rows import BestFit
from keras_bert_flow.text.tokenizers.files import find_tokenizer_file
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer

SEQUENCE_LENGTH = 512


class TextPreprocessor:
    """Make the inputs of a model from texts: [CLS] A [SEP], or [CLS] A [SEP] B [SEP] for two.

    A model that `from_preset` loads has one as `preprocessor`, so that its `fit`, `evaluate` and `predict` take texts.

    Args:
        tokenizer: that of the model.
        sequence_length: most tokens of a row; longer texts are cut at the end.
    Raises:
        ValueError: no token would fit beside the special ones.
    Source: Devlin et al. 2019, section 3, input representation.
    Example:
        >>> preprocessor = kbf.TextPreprocessor(kbf.Tokenizer.from_preset("model"), sequence_length=16)
        >>> inputs = preprocessor([("the film", "a story")])
        >>> inputs["segment_ids"][0, :7].tolist()
        [0, 0, 0, 0, 1, 1, 1]
    """

    def __init__(self, tokenizer: Tokenizer, sequence_length: int = SEQUENCE_LENGTH):
        if sequence_length < 4 + tokenizer.separators:
            raise ValueError(
                f"`sequence_length` must leave room beside the special tokens. Received: {sequence_length}. Try 128."
            )
        self.tokenizer, self.sequence_length = tokenizer, sequence_length

    @classmethod
    def from_preset(cls, path: str | Path, sequence_length: int = SEQUENCE_LENGTH) -> "TextPreprocessor":
        """Make one with the tokenizer of a model directory; errors as for `read_tokenizer`."""
        return cls(read_tokenizer(path), sequence_length)

    @classmethod
    def of_model(cls, path: str | Path, max_positions: int) -> "TextPreprocessor | None":
        """Make that of a model directory, or return None if it holds no tokenizer.

        Rows are as long as its `task.json` says, else as the model has positions, at most `SEQUENCE_LENGTH`.
        """
        folder = fetch(path)
        if not find_tokenizer_file(folder).is_file():
            return None
        length = min(max_positions, SEQUENCE_LENGTH)
        if (folder / TASK_FILE).is_file():
            length = min(length, read_task(folder)[1])
        return cls(read_tokenizer(folder), length)

    def __call__(self, texts: Iterable[Any]) -> dict[str, np.ndarray]:
        """Return `token_ids`, `segment_ids` and `padding_mask` of texts, int32, (texts, width).

        The width is the smallest that holds the longest text of `sequence_length`, its half, its quarter and so on, so
        that few shapes are compiled.

        Args:
            texts: texts; for pairs, lists or tuples of two texts, or objects with `text` and `text_pair`.
        Raises:
            ValueError: an item is something else.
        """
        examples = [make_text_example(item, is_pair=not isinstance(item, str)) for item in texts]
        features = encode_examples(self.tokenizer, examples, self.sequence_length, {})
        longest = features.lengths.max(initial=1)
        width = next(width for width in halve_widths(self.sequence_length) if width >= longest)
        return make_inputs(features, np.arange(len(examples)), width)


# Packing: several texts per row, so that rows of short texts hold hardly any padding.


@dataclass(frozen=True)
class PackedRows:
    """Rows that hold several texts each.

    Attributes:
        inputs: `token_ids`, `segment_ids` and `padding_mask`, int32, (rows, row_length). `padding_mask` numbers the
            texts of a row from 1; 0 is padding.
        rows, starts: int64, (texts,). The row of each text, and its first place there.
    """

    inputs: dict[str, np.ndarray]
    rows: np.ndarray
    starts: np.ndarray


def pack_rows(inputs: Mapping[str, np.ndarray], row_length: int) -> PackedRows:
    """Put texts that have a row each into as few rows as possible, whole, by best fit with the longest first.

    Models whose outputs are all of tokens, such as `MaskedLM` and `TokenClassifier`, compute on packed rows what they
    compute on the texts alone. Rows and their order depend on nothing but the lengths of the texts.

    Args:
        inputs: `token_ids`, `segment_ids` and `padding_mask`, int, (texts, length), with padding at the end, as a
            `TextPreprocessor` makes them.
        row_length: tokens per row.
    Returns:
        The rows, and where each text is.
    Raises:
        ValueError: a text is longer than a row, has no tokens, or has padding between them.
    Source: as for `text.rows.BestFit`.
    Example:
        >>> preprocessor = kbf.TextPreprocessor(kbf.Tokenizer.from_preset("model"), sequence_length=16)
        >>> inputs = preprocessor(["the film was fine", "a dull story", "it seemed bad"])
        >>> packed = kbf.pack_rows(inputs, row_length=16)
        >>> packed.inputs["padding_mask"].tolist()
        [[1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3]]
        >>> packed.rows.tolist(), packed.starts.tolist()
        ([0, 0, 0], [0, 6, 11])
    """
    mask = np.asarray(inputs["padding_mask"]) > 0
    lengths = mask.sum(axis=1)
    is_prefix = (mask == (np.arange(mask.shape[1]) < lengths[:, None])).all(axis=1)
    wrong = np.flatnonzero((lengths == 0) | (lengths > row_length) | ~is_prefix)
    if len(wrong):
        raise ValueError(
            f"A text must have 1 to {row_length} tokens, with padding at the end. Received: {lengths[wrong[0]]} tokens "
            f"in text {wrong[0]}. Cut the texts, take longer rows, or leave out empty texts."
        )
    fit = BestFit(row_length)
    places = fit.place(lengths.tolist())
    packed = {name: np.zeros((len(fit.counts), row_length), np.int32) for name in inputs}
    for text, (row, start, number) in enumerate(places):
        part = slice(start, start + lengths[text])
        for name, values in inputs.items():
            packed[name][row, part] = number if name == "padding_mask" else values[text][: lengths[text]]
    rows, starts, _ = np.array(places, np.int64).reshape(-1, 3).T
    return PackedRows(packed, rows, starts)

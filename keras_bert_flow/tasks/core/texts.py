"""Read labelled examples of one or two texts, and encode them as sequences of tokens."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_flow.tasks.core.features import Features, count_joined, join_texts
from keras_bert_flow.tasks.formats.rows import abridge
from keras_bert_flow.tasks.formats.tables import read_columns, trim_labels
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True)
class TextExample:
    """An example of one or two texts.

    Attributes:
        label: by task, the name of a class, a number, or a tuple of names; None if unknown.
        place: file and row, for messages; any other name if not read from a file.
    """

    text: str
    text_pair: str | None = None
    label: Any = None
    place: str = "an example"

    @property
    def inputs(self) -> dict[str, str]:
        """The texts by name: text, and text_pair where there is one."""
        return {"text": self.text} | ({} if self.text_pair is None else {"text_pair": self.text_pair})

    @property
    def gold(self) -> Any:
        return frozenset(self.label) if isinstance(self.label, tuple) else self.label


def read_examples(
    path: str | Path,
    texts: tuple[str, str | None],
    labels: Sequence[str],
    header: bool,
    max_examples: int | None,
    read_label: Callable[[str, list], Any],
    keeps_blanks: bool = False,
) -> list[TextExample]:
    """Read examples from a table in the layout of `tables.read_table`.

    Args:
        texts: columns of the text and of the second text, if there is one.
        labels: columns that make up the label; empty if the table has no labels.
        read_label: makes a label from the place, for messages, and the values of those columns. Blanks around names,
            and repeated names of a tuple, are removed with a warning.
        keeps_blanks: as for `read_columns`.
    """
    columns = [column for column in texts if column is not None]
    places, found, shown = [], [], []
    for number, values in read_columns(path, columns, list(labels), header, max_examples, keeps_blanks):
        places.append(f"{path}, row {number}")
        parts = values[len(columns) :]
        found.append(read_label(places[-1], parts) if parts else None)
        shown.append((values[0], values[1] if len(columns) == 2 else None))
    trimmed = trim_labels(places, found)
    return [TextExample(*pair, *rest) for pair, *rest in zip(shown, trimmed, places, strict=True)]


def pose_texts(item: Any, is_pair: bool) -> TextExample:
    """Make an example from a text, from two texts, or from an object with `text` and `text_pair`.

    A text may be blank: the model then reads its special tokens only. One blank text also stands for a blank pair.

    Raises:
        ValueError: the item does not have as many texts as the task.
    """
    if is_pair and is_blank(item):
        return TextExample("", "")
    return TextExample(*take_texts(item, ("text", "text_pair") if is_pair else ("text",)))


def is_blank(item: Any) -> bool:
    """Return whether an item to predict is a blank text, as from a blank line."""
    return isinstance(item, str) and not item.strip()


def take_texts(item: Any, fields: Sequence[str]) -> list[str]:
    """Return the texts of an item: a string for one field, a sequence for several, or an object that names them.

    Raises:
        ValueError: it is none of these.
    """
    if isinstance(item, str):
        texts = [item]
    elif isinstance(item, Mapping):
        texts = [item[name] for name in fields] if set(item) == set(fields) else []
    else:
        texts = list(item) if isinstance(item, list | tuple) else []
    if len(texts) != len(fields) or not all(isinstance(text, str) for text in texts):
        raise ValueError(
            f"An item for this task must have the texts {', '.join(fields)}. Received: {abridge([repr(item)])}. "
            "Give a text for one, a list or an object with these names for several."
        )
    return texts


def encode_examples(
    tokenizer: Tokenizer, examples: Sequence[TextExample], sequence_length: int, labels: dict[str, np.ndarray]
) -> Features:
    """Encode each example as one row: [CLS] A [SEP], or [CLS] A [SEP] B [SEP] if it has a second text."""
    firsts = tokenizer.encode_batch([example.text for example in examples])
    seconds = [None if example.text_pair is None else tokenizer.encode(example.text_pair) for example in examples]
    pairs = list(zip(firsts, seconds, strict=True))
    joined = [join_texts(tokenizer, *pair, sequence_length) for pair in pairs]
    return Features(
        token_ids=[token_ids for token_ids, _ in joined],
        first_lengths=np.array([first_length for _, first_length in joined], dtype=np.int32),
        examples=np.arange(len(examples), dtype=np.int32),
        labels=labels,
        sequence_length=sequence_length,
        full_lengths=np.array([count_joined(tokenizer, *pair) for pair in pairs], dtype=np.int64),
    )


def are_labelled(examples: Sequence[Any]) -> bool:
    """Return whether the examples have labels.

    Raises:
        ValueError: only some of them have labels.
    """
    unlabelled = [example for example in examples if example.label is None]
    if unlabelled and len(unlabelled) < len(examples):
        raise ValueError(
            "Either every example must have a label or none. "
            f"Received: {unlabelled[0].place} without one. Fill it or drop the row."
        )
    return not unlabelled


def labels_of(examples: Sequence[Any]) -> list[Any]:
    """Return the label of each example.

    Raises:
        ValueError: there are no examples, or one has no label.
    """
    if not examples or not are_labelled(examples):
        received = f"{examples[0].place} without a label" if examples else "no examples"
        raise ValueError(f"Learning and scoring need labels. Received: {received}. Read a table that has them.")
    return [example.label for example in examples]

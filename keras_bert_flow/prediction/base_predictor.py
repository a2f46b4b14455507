"""Base class for prediction."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from keras_bert_flow.data.tasks import ChooseWidths, choose_few_widths, fit_widths, halve_widths
from keras_bert_flow.prediction.lines import (
    PlacedItem,
    check_batch_positions,
    check_lines_file,
    list_items,
    read_items,
    read_until_mistake,
)
from keras_bert_flow.tasks.core.task import Prediction
from keras_bert_flow.tasks.core.texts import CutTexts, describe_cut, make_text_example
from keras_bert_flow.tasks.formats.rows import read_lines
from keras_bert_flow.tasks.formats.tables import read_columns
from keras_bert_flow.text.corpus.inputs import PARQUET

_logger = logging.getLogger(__name__)
AT_ONCE = 512  # items of a stream that are sorted by length and predicted together
BLOCK = 2048  # the same for examples of a file


class BasePredictor(ABC):
    """Base class of what `kbf.load` returns: items in, one prediction per item out.

    Args:
        sequence_length: most tokens of a row.
        batch_positions: rows times width of a batch.
    Attributes:
        cut_texts: counts of the texts so far, and of those that were longer than `sequence_length`.
    Raises:
        ValueError: `batch_positions` is less than 1.
    """

    def __init__(self, sequence_length: int, batch_positions: int):
        check_batch_positions(batch_positions)
        self.sequence_length = sequence_length
        self.batch_positions = batch_positions
        self.cut_texts = CutTexts()
        self._has_told = False

    def make_example(self, item: Any) -> Any:
        """Make an example from an item; here from a text.

        Raises:
            ValueError: the item does not fit this model.
        """
        return make_text_example(item, is_pair=False)

    def read(self, path: str | Path) -> Iterable[Any]:
        """Read examples from a file, lazily; here one item per line, as read by `lines.read_items`, or the texts of the
        column `text` of a .parquet.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: the file has other content.
        """
        check_lines_file(path)
        if str(path).endswith(PARQUET):
            rows = read_columns(path, ["text"], [], True, None, keeps_blanks=True)
            return self._make_examples((f"{path}, row {number}", text) for number, (text,) in rows)
        return self._make_examples(read_items((line for _, line in read_lines(path)), f"{path}, row"))

    @abstractmethod
    def answer(self, examples: Sequence[Any], choose: ChooseWidths | None = None, follow: Callable = iter) -> list[Any]:
        """Return one prediction per example: a `Prediction`, or the model's own format.

        Args:
            choose, follow: as for `predict_features`.
        """

    def predict(self, items: Iterable[Any]) -> list[Prediction]:
        """Return a list with one prediction per item.

        Args:
            items: texts; for a pair of texts lists of two, or objects with the names of the model's parts, such as
                {"question": ..., "context": ...}. A single text or object, in place of a list, is one item.
        Raises:
            TypeError: the items are bytes, a number or None.
            ValueError: an item does not fit the model; the message has its number, from 1.
        """
        answers = self.answer(list(self._make_examples(_number(items))), self.choose_fixed)
        self.tell_cut_texts()
        return answers

    def tell_cut_texts(self) -> None:
        """Log how many texts so far were longer than the model reads, once."""
        if not self._has_told and (line := describe_cut(self.cut_texts.counters)):
            self._has_told = True
            _logger.warning("%s", line)

    def predict_stream(self, items: Iterable[Any], at_once: int = AT_ONCE) -> Iterator[Prediction]:
        """Yield a prediction for each item of a possibly endless stream, `at_once` items at a time."""
        numbered = _number(items)
        for answers in self.predict_chunks(iter(lambda: list(islice(numbered, at_once)), [])):
            yield from answers

    def predict_chunks(self, chunks: Iterable[Iterable[PlacedItem]]) -> Iterator[list[Prediction]]:
        """Yield the predictions for each chunk of a stream as it arrives; empty chunks are skipped.

        Raises:
            ValueError: an item does not fit the model, or could not be read. The items before it are predicted first.
        """
        for chunk in chunks:
            examples, mistake = read_until_mistake(self._make_examples(chunk))
            if examples:
                yield self.answer(examples, self.choose_fixed)
            if mistake is not None:
                raise mistake

    def answer_blocks(
        self, examples: Iterable[Any], advance: Callable[[float], None] = lambda count: None
    ) -> Iterator[list[Prediction]]:
        """Yield the predictions for examples in blocks, so that not all of them are in memory at once.

        Args:
            advance: called with the number of further examples that are done.
        """
        examples, longest = iter(examples), self.sequence_length
        widths: Sequence[int] = ()

        def choose(lengths) -> Sequence[int]:
            """Choose widths by the first block of a file, and keep them: the other blocks have no new shapes."""
            nonlocal widths
            if not widths:
                chosen = choose_few_widths(lengths, self.batch_positions)
                widths = (*(width for width in chosen if width < longest), longest)
            return fit_widths(lengths, widths, self.batch_positions)

        while some := list(islice(examples, BLOCK)):
            yield self.answer(some, choose, partial(_tell, advance, len(some)))

    def _make_examples(self, items: Iterable[PlacedItem]) -> Iterator[Any]:
        for place, item in items:
            try:
                example = self.make_example(item)
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None
            yield example

    def choose_fixed(self, lengths) -> Sequence[int]:
        """Return batch widths that do not depend on the texts, so that later ones need no new shapes."""
        return fit_widths(lengths, halve_widths(self.sequence_length), self.batch_positions)


def _number(items: Iterable[Any]) -> Iterator[PlacedItem]:
    return ((f"Item {number}", item) for number, item in enumerate(list_items(items), 1))


def _tell(advance: Callable[[float], None], count: int, batches: Sequence) -> Iterator:
    """Yield batches, and report for each, when it is done, its average share of the `count` examples."""
    rows = sum(len(batch) for batch, _ in batches)
    for batch in batches:
        yield batch
        advance(len(batch[0]) * count / rows)

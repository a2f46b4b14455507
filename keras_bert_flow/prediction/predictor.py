"""Ask a fine-tuned model: texts in; labels, spans or answers out."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from keras_bert_flow.conversion.model_directory import load_task_model
from keras_bert_flow.data.tasks import predict_features, read_tokenizer
from keras_bert_flow.tasks.stored import read_task
from keras_bert_flow.tasks.task import Prediction

AT_ONCE = 512  # items that are sorted by their length together


def load(folder: str | Path) -> "Predictor":
    """Load what `kbf finetune` made; see `Predictor`."""
    return Predictor(folder)


class Predictor:
    """A fine-tuned model with its vocabulary and its task.

    Args:
        folder: a model directory with `task.json`.
    Raises:
        FileNotFoundError: the folder or a file of it is missing.
        ValueError: a file is damaged, or the model has no head for the task.
    """

    def __init__(self, folder: str | Path):
        folder = Path(folder)
        self.task, self.sequence_length = read_task(folder)
        self.tokenizer = read_tokenizer(folder)
        self.model = load_task_model(self.task.kind, folder, labels=self.task.labels, needs_head=True)

    def predict(self, items: Sequence[Any]) -> list[Prediction]:
        """Return a prediction for each item, in plain values.

        Args:
            items: texts; for a pair of texts lists of two, or objects with the names that the task has for its parts,
                such as {"question": ..., "context": ...}.
        Raises:
            ValueError: an item is not what the task is asked.
        """
        return self.predict_examples([self.task.pose(item) for item in items])

    def predict_examples(self, examples: Sequence[Any], follow: Callable = iter) -> list[Prediction]:
        """Return a prediction for each example of the task, as `task.read` returns them.

        `follow` takes the batches and yields them again, to show progress.
        """
        if not examples:
            return []
        features = self.task.encode(self.tokenizer, examples, self.sequence_length)
        return self.task.decode(predict_features(self.model, features, follow=follow), features, examples)

    def predict_stream(self, items: Iterable[Any], at_once: int = AT_ONCE) -> Iterator[Prediction]:
        """Yield a prediction for each item of a stream without an end, so many at a time."""
        items = iter(items)
        while chunk := list(islice(items, at_once)):
            yield from self.predict(chunk)

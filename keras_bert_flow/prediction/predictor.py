"""Prediction with a fine-tuned model: texts in; labels, spans or answers out."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, final

from keras_bert_flow.conversion.directory import ModelDirectory
from keras_bert_flow.conversion.model_directory import load_task_model
from keras_bert_flow.data.tasks import BATCH_POSITIONS, ChooseWidths, predict_features
from keras_bert_flow.prediction.base_predictor import BasePredictor
from keras_bert_flow.prediction.exported_model import is_exported, load_exported
from keras_bert_flow.prediction.load import find_task
from keras_bert_flow.tasks.core.task import TASK_FILE, Features, Prediction
from keras_bert_flow.tasks.core.texts import make_text_example


@final
class Predictor(BasePredictor):
    """A fine-tuned model with its tokenizer and its task.

    Args:
        folder: a model directory with `task.json`, or with a config.json that names the head's task; see `find_task`.
            Without `task.json` a model of texts also accepts pairs of texts. Or what `kbf export` wrote as ONNX.
        batch_positions: rows times width of a batch.
        threads: of ONNX Runtime; None: its own choice.
    Raises:
        FileNotFoundError: the folder or a file of it is missing.
        ValueError: a file is damaged, or the model has no head for the task.
    """

    def __init__(
        self,
        folder: str | Path | ModelDirectory,
        batch_positions: int = BATCH_POSITIONS,
        threads: int | None = None,
    ):
        directory = ModelDirectory.of(folder)
        folder = directory.folder
        self.task, sequence_length = find_task(directory)
        self._may_be_pairs = hasattr(self.task, "text_pair") and not (folder / TASK_FILE).is_file()
        super().__init__(sequence_length, batch_positions)
        self.tokenizer = directory.tokenizer
        self.model: Any
        if is_exported(folder):
            self.model = load_exported(folder, self.task.kind, threads)
        else:
            self.model = load_task_model(self.task.kind, directory, labels=self.task.labels, needs_head=True)

    def take_weights(self, folder: str | Path) -> None:
        """Load the weights of another run of the same fine-tuning into this model, which is already compiled."""
        other = load_task_model(self.task.kind, folder, labels=self.task.labels, needs_head=True)
        for ours, theirs in zip(self.model.variables, other.variables, strict=True):
            ours.assign(theirs)

    def make_example(self, item: Any) -> Any:
        if self._may_be_pairs and isinstance(item, list | tuple | Mapping) and len(item) == 2:
            return make_text_example(item, is_pair=True)
        return self.task.make_example(item)

    def read(self, path: str | Path) -> Sequence[Any]:
        """Read all examples of a file in the task's format; labels, if there are any, are ignored."""
        return self.task.read(path, has_labels=False)

    def answer(
        self, examples: Sequence[Any], choose: ChooseWidths | None = None, follow: Callable = iter
    ) -> list[Prediction]:
        return self.answer_encoded(self.encode(examples), examples, choose, follow) if examples else []

    def encode(self, examples: Sequence[Any]) -> Features:
        """Return the features of examples, which are the same for every run of a fine-tuning."""
        features = self.task.encode(self.tokenizer, examples, self.sequence_length)
        self.cut_texts.add(features)
        return features

    def answer_encoded(
        self, features: Features, examples: Sequence[Any], choose: ChooseWidths | None = None, follow: Callable = iter
    ) -> list[Prediction]:
        """Return a prediction for each of the examples that the features were made from; arguments as for `answer`."""
        outputs = predict_features(
            self.model, features, batch_positions=self.batch_positions, follow=follow, choose=choose
        )
        return self.task.decode(outputs, features, examples)

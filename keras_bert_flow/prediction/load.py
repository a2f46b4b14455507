"""Load a model directory, or an exported model, for prediction, with the task that its files determine."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_bert_flow.by_name import Registry, load_by_name, load_public
from keras_bert_flow.conversion.adapters import is_bare_adapter
from keras_bert_flow.conversion.directory import ModelDirectory
from keras_bert_flow.conversion.directory_files import number_labels, read_json, read_labels
from keras_bert_flow.conversion.tables.table import find_table
from keras_bert_flow.files.outputs import EXPORTED
from keras_bert_flow.files.paths import is_configuration
from keras_bert_flow.prediction.lines import check_batch_positions
from keras_bert_flow.tasks.core.task import TASK_FILE, Task
from keras_bert_flow.tasks.registry import KINDS, make_task, read_task

if TYPE_CHECKING:
    from keras_bert_flow.prediction.base_predictor import BasePredictor


# Find the task of a model directory, from its `task.json` or from the head in `config.json`.

SEQUENCES = "ForSequenceClassification"  # of `transformers`, for three problems


def has_task(model: str | Path | ModelDirectory) -> bool:
    """Return whether a directory with a config.json defines a task."""
    directory = ModelDirectory.of(model)
    if (directory.folder / TASK_FILE).is_file():
        return True
    _ = directory.settings  # checks the types of its fields
    return _find_class(directory.stored_config) is not None


def find_task(model: str | Path | ModelDirectory) -> tuple[Task, int]:
    """Return the task of a model directory, and its sequence length.

    Without `task.json`, the architecture, `problem_type` and `id2label` determine the task; texts may be as long as the
    model has positions. The columns of a table, or a threshold for questions without an answer, are then the defaults.

    Raises:
        FileNotFoundError: the directory or a file of it is missing, or nothing in it names a task.
        ValueError: a file is damaged.
    """
    directory = ModelDirectory.of(model)
    folder, read = directory.folder, directory.files.read
    path = folder / "config.json"
    if not path.is_file():
        return read_task(folder, read)
    config, max_positions = directory.stored_config, directory.settings["max_positions"]
    if (folder / TASK_FILE).is_file():
        task, sequence_length = read_task(folder, read)
        if sequence_length > max_positions:
            raise ValueError(
                f"{folder / TASK_FILE}: `sequence_length` must be at most the model's {max_positions} positions. "
                f"Received: {sequence_length}. Do the files belong together?"
            )
        return task, sequence_length
    task_class = _find_class(config)
    if task_class is None:
        return read_task(folder, read)  # its error says what is missing
    labels: Sequence[str] = ()
    if task_class.has_classes:
        labels = read_labels(config, str(path)) or number_labels(_count_labels(config))
    return make_task(task_class.kind, **task_class.find_fields(labels, str(path))), max_positions


def has_unnamed_outputs(folder: str | Path, task: Task) -> bool:
    """Return whether the outputs of a model have no names of their own, but those of `transformers`: LABEL_0, ..."""
    is_ours = (Path(folder) / TASK_FILE).is_file()
    return not is_ours and bool(task.labels) and task.labels == number_labels(len(task.labels))


def name_outputs(folder: str | Path, task: Task, names: Sequence[str]) -> Task:
    """Return the task of a model whose unnamed outputs have these names.

    It is unchanged if the outputs have names, or none are given.

    Raises:
        ValueError: there is another number of outputs.
    """
    if not names or not has_unnamed_outputs(folder, task):
        return task
    if len(names) != len(task.labels):
        raise ValueError(
            f"`labels` must name each output of the model, in their order. Received: {len(names)} names for the "
            f"{len(task.labels)} outputs of {folder}. Name all of them."
        )
    return make_task(**task.get_config() | {"labels": tuple(names)})


def _find_class(config: Mapping[str, Any]) -> type[Task] | None:
    architectures = config.get("architectures")
    architecture = architectures[0] if isinstance(architectures, list) and architectures else ""
    architecture = architecture.removeprefix(find_table(config["model_type"]).class_prefix)
    problem = None
    if architecture == SEQUENCES:
        problem = config.get("problem_type") or (
            "regression" if _count_labels(config) == 1 else "single_label_classification"
        )
    for task_class in map(KINDS.find, KINDS):
        if (task_class.architecture, task_class.problem_type) == (architecture, problem):
            return task_class
    return None


def _count_labels(config: Mapping[str, Any]) -> int:
    """Return the number of outputs as in `transformers`: two by default."""
    names = config.get("id2label")
    return len(names) if isinstance(names, Mapping) else config.get("num_labels", 2)


FINE_TUNED, FILL_MASK, EMBEDDING, FEATURES = "task", "fill_mask", "sentence_embedding", "features"
CONVERT = "keras_bert_flow.conversion.convert:convert"
# task → class
ASKED_AS: Registry[Any] = Registry(
    "The task of a model",
    {
        FINE_TUNED: "keras_bert_flow.prediction.predictors:Predictor",
        FILL_MASK: "keras_bert_flow.prediction.masked_lm:MaskFiller",
        EMBEDDING: "keras_bert_flow.prediction.predictors:Embedder",
        FEATURES: "keras_bert_flow.prediction.predictors:FeatureExtractor",
    },
)
# task → arguments of the class after the folder
OPTIONS = {
    FINE_TUNED: ("batch_positions", "threads"),
    FILL_MASK: ("top_k", "batch_positions"),
    EMBEDDING: ("pooling", "normalize", "batch_positions", "threads"),
    FEATURES: ("layers", "pooling", "batch_positions"),
}


def load(folder: str | Path | ModelDirectory, task: str | None = None, **options: Any) -> "BasePredictor":
    """Load a model directory, ours or Hugging Face's, for prediction.

    Args:
        folder: local or remote location; see `stores.fetching.fetch`. Or the configuration of a finished run, a `.yaml`
            file: the model of the seed that is best on dev. Or a directory that has been opened for a check.
        task: one of `ASKED_AS`. Default: `task`, what the model was fine-tuned for according to its `task.json` or
            `config.json`.
        options: arguments of the class, such as `top_k`.
    Raises:
        FileNotFoundError: the folder or a file of it is missing.
        ValueError: the model does not have the task, or an option is unknown.
    Example:
        >>> classifier = kbf.load("classifier")
        >>> (prediction,) = classifier.predict("the film was fine")
        >>> sorted(prediction)
        ['label', 'probabilities', 'probability']
        >>> filler = kbf.load("model", task="fill_mask", top_k=3)
        >>> (masks,) = filler.predict("the [MASK] was fine")
        >>> len(masks[0]), sorted(masks[0][0])
        (3, ['score', 'sequence', 'token', 'token_str'])
    """
    if not isinstance(folder, ModelDirectory):
        folder = ModelDirectory(load_public("find_model")(folder) if is_configuration(folder) else folder)
    if is_bare_adapter(folder.folder):
        # peft writes the matrices alone: the tokenizer, the settings and the task are those of the base.
        with tempfile.TemporaryDirectory() as place:
            load_by_name(CONVERT)(folder.folder, Path(place) / "merged")
            return load(Path(place) / "merged", task, **options)
    check_request(folder, task, options)
    return ASKED_AS.find(task or FINE_TUNED)(folder, **options)


def check_request(model: str | Path | ModelDirectory, task: str | None, options: Mapping[str, Any]) -> None:
    """Check the arguments of `load`, without loading the model; arguments and errors as for `load`."""
    if task is not None:
        ASKED_AS.check(task)
    directory = ModelDirectory.of(model)
    if task is None and (directory.folder / "config.json").is_file() and not has_task(directory):
        others = ", ".join(name for name in ASKED_AS if name != FINE_TUNED)
        raise FileNotFoundError(
            f"A model directory must hold {TASK_FILE}, or a config.json with the head of a task, to be asked. "
            f"Received: {directory}, without either. Take one that `kbf finetune` made, or say as what it is asked: "
            f"{others}."
        )
    known = OPTIONS[task or FINE_TUNED]
    unknown = [option for option in options if option not in known]
    if unknown:
        raise ValueError(
            f"An option must be one of what is asked. Received: {', '.join(unknown)} for {task or FINE_TUNED}. "
            f"Use: {', '.join(known)}."
        )
    check_batch_positions(options.get("batch_positions", 1))


# A model that `kbf export` wrote, in place of a Keras model: ONNX Runtime computes its outputs.

ONNX = "keras_bert_flow.export.onnx_file:Onnx"
INPUTS = {"input_ids": "token_ids", "token_type_ids": "segment_ids", "attention_mask": "padding_mask"}
OUTPUTS = {"start_logits": "start", "end_logits": "end", "sentence_embedding": "logits"}


def is_exported(folder: str | Path) -> bool:
    """Return whether a folder is what `kbf export` wrote."""
    return (Path(folder) / EXPORTED).is_file()


def read_kind(folder: str | Path) -> str:
    """Return what a folder was exported as: the kind of a task, `sentence_embedding`, `features` or `fill_mask`."""
    return str(read_json(Path(folder) / EXPORTED).get("kind"))


class ExportedModel:
    """An exported model with the inputs and outputs of the Keras model that it was made from.

    Args:
        folder: what `kbf export --format onnx` wrote.
        kind: what it must have been exported as: the kind of a task, `sentence_embedding`, `features` or `fill_mask`.
        threads: of ONNX Runtime; None: its own choice.
    Attributes:
        output: name → an object with `shape`, as of a Keras model.
        max_positions: most tokens of a row.
    Raises:
        FileNotFoundError: a file of it is missing.
        ValueError: it is of another format or kind, or damaged.
    """

    compiles_shapes = False

    def __init__(self, folder: str | Path, kind: str, threads: int | None = None):
        path = Path(folder) / EXPORTED
        facts = read_json(path)
        if facts.get("format") != "onnx":
            raise ValueError(
                f"An exported model must be ONNX to be asked here. Received: {path}, of {facts.get('format')!r}. "
                "Export it with --format onnx, or give the model directory."
            )
        file = Path(folder) / str(facts.get("file"))
        if not file.is_file():
            raise FileNotFoundError(f"An exported model must hold its file. Received: {folder}, without {file.name}.")
        try:
            self.kind, self.max_positions = str(facts["kind"]), int(facts["max_positions"])
            self._inputs = {name: INPUTS[name] for name in facts["inputs"]}
            self._outputs = {name: OUTPUTS.get(name, name) for name in facts["outputs"]}
            shapes = {self._outputs[name]: output["shape"] for name, output in facts["outputs"].items()}
            self._run = load_by_name(ONNX)().load(file, threads)
        except Exception as error:  # the runtime has its own errors
            reason = " ".join(str(error).split())[:200]
            raise ValueError(
                f"{path}: must be as `kbf export` wrote it. Received: {reason}. Export it again."
            ) from None
        if self.kind != kind:
            raise ValueError(
                f"An exported model must be asked as what it was exported as. Received: {kind}, and {folder} as "
                f"{self.kind}. Export it --as {FINE_TUNED if kind != EMBEDDING else kind}."
            )
        self.output = {
            name: SimpleNamespace(shape=tuple(size if isinstance(size, int) else None for size in shape))
            for name, shape in shapes.items()
        }
        if self.kind == "regression":  # its axis of one number is that of `transformers`
            self.output["logits"].shape = (None,)

    def predict_on_batch(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs for a batch, float32, by name."""
        if self.kind == EMBEDDING:  # a text has an axis of its own for partners, which is of one here
            inputs = {name: ids.reshape(-1, ids.shape[-1]) for name, ids in inputs.items()}
        found = self._run({name: inputs[ours].astype(np.int64) for name, ours in self._inputs.items()})
        outputs = {self._outputs[name]: values for name, values in found.items()}
        if self.kind == EMBEDDING:
            outputs["logits"] = outputs["logits"][:, None]
        if self.kind == "regression":
            outputs["logits"] = outputs["logits"][:, 0]
        return outputs

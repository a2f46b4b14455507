"""A model that `kbf export` wrote, in place of a Keras model: ONNX Runtime computes its outputs."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np

from keras_bert_flow.by_name import load_by_name
from keras_bert_flow.conversion.directory_files import read_json
from keras_bert_flow.files.outputs import EXPORTED

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
        threads: of ONNX Runtime; None: its own choice.
    Attributes:
        kind: kind of the task, `sentence_embedding`, `features` or `fill_mask`.
        output: name → an object with `shape`, as of a Keras model.
        max_positions: most tokens of a row.
    Raises:
        FileNotFoundError: a file of it is missing.
        ValueError: it is of another format, or damaged.
    """

    compiles_shapes = False

    def __init__(self, folder: str | Path, threads: int | None = None):
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
        self.output = {
            name: SimpleNamespace(shape=tuple(size if isinstance(size, int) else None for size in shape))
            for name, shape in shapes.items()
        }
        if self.kind == "regression":  # its axis of one number is that of `transformers`
            self.output["logits"].shape = (None,)

    def predict_on_batch(self, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs for a batch, float32, by name."""
        if self.kind == "sentence_embedding":  # a text has an axis of its own for partners, which is of one here
            inputs = {name: ids.reshape(-1, ids.shape[-1]) for name, ids in inputs.items()}
        found = self._run({name: inputs[ours].astype(np.int64) for name, ours in self._inputs.items()})
        outputs = {self._outputs[name]: values for name, values in found.items()}
        if self.kind == "sentence_embedding":
            outputs["logits"] = outputs["logits"][:, None]
        if self.kind == "regression":
            outputs["logits"] = outputs["logits"][:, 0]
        return outputs


def load_exported(folder: str | Path, kind: str, threads: int | None = None) -> ExportedModel:
    """Return the exported model of a folder, which `is_exported`.

    Raises:
        ValueError: it was exported as something other than `kind`, or as for `ExportedModel`.
    """
    model = ExportedModel(folder, threads)
    if model.kind != kind:
        raise ValueError(
            f"An exported model must be asked as what it was exported as. Received: {kind}, and {folder} as "
            f"{model.kind}. Export it --as {'task' if kind != 'sentence_embedding' else kind}."
        )
    return model

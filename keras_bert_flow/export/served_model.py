"""The model to export from a model directory: a functional model with `transformers`' names of inputs and outputs.

The tokenizer next to the exported file uses these names for its arrays, and so do programs that read exported models,
such as `optimum` and `transformers.js`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
from keras import ops

from keras_bert_flow.conversion.model_directory import load_backbone, load_pretrainer, load_task_model
from keras_bert_flow.models.pretraining.masked_lm import MaskedLM, make_vocabulary_model
from keras_bert_flow.prediction.load import EMBEDDING, FEATURES, FILL_MASK, find_task
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer

# our inputs → transformers', in the order of its tokenizers
INPUT_NAMES = {"token_ids": "input_ids", "segment_ids": "token_type_ids", "padding_mask": "attention_mask"}
OUTPUT_NAMES = {
    "sequence_output": "last_hidden_state",
    "pooled_output": "pooler_output",
    "start": "start_logits",
    "end": "end_logits",
}
LOGITS, SENTENCE = "logits", "sentence_embedding"  # of a model with one output
SEGMENTS = "segment_ids"


@dataclass(frozen=True)
class StringInputs:
    """How an exported model tokenizes texts.

    Attributes:
        tokenizer: the tokenizer to reproduce.
        sequence_length: maximum number of tokens per row.
    """

    tokenizer: WordPieceTokenizer
    sequence_length: int


@dataclass(frozen=True)
class ServedModel:
    """A model to export.

    Attributes:
        model: model with int32 inputs and float32 outputs, by their exported names.
        axes: name of each axis of the inputs → its maximum size, or None if unlimited.
        kind: what the model computes: the result of `request.find_kind`.
        strings: how it tokenizes texts; None if it takes only ids.
    """

    model: keras.Model
    axes: Mapping[str, Any]
    kind: str
    strings: StringInputs | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(self.model.input)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(self.model.output)

    @property
    def backend(self) -> str:
        return keras.backend.backend()


def load_served(folder: Path, kind: str) -> ServedModel:
    """Load the model to export from a directory.

    Args:
        kind: the result of `request.find_kind`.
    Raises:
        FileNotFoundError, ValueError: the directory is damaged, or lacks the head.
    """
    model = _load(folder, kind)
    outputs = model.output
    if not isinstance(outputs, Mapping):
        outputs = {SENTENCE if kind == EMBEDDING else LOGITS: outputs}
    outputs = {OUTPUT_NAMES.get(name, name): value for name, value in outputs.items()}
    if kind == "regression":
        outputs[LOGITS] = ops.expand_dims(outputs[LOGITS], -1)  # (batch, 1), as in `transformers`
    named = keras.Model(model.input, outputs, name="named")
    backbone = getattr(model, "backbone", model)
    names = ("batch", "length") if len(model.input["token_ids"].shape) == 2 else ("batch", "choices", "length")
    axes = dict.fromkeys(names) | {"length": backbone.max_positions}
    # A family without segments has no segment input.
    kept = [name for name in INPUT_NAMES if name != SEGMENTS or backbone.shape.num_segments > 1]
    inputs = {name: keras.Input([None] * (len(names) - 1), dtype="int32", name=INPUT_NAMES[name]) for name in kept}
    given = {SEGMENTS: ops.zeros_like(inputs["token_ids"])} | inputs
    served = keras.Model({INPUT_NAMES[name]: value for name, value in inputs.items()}, named(given), name="served")
    return ServedModel(served, axes, kind)


def _load(folder: Path, kind: str) -> keras.Model:
    if kind == FEATURES:
        return load_backbone(folder)
    if kind == EMBEDDING:
        return load_task_model(kind, folder).make_embedder()
    if kind == FILL_MASK:
        model, missing = load_pretrainer(MaskedLM, folder)
        if missing:
            raise ValueError(f"{folder}: there is no masked-token head in it. Export it --as features.")
        return make_vocabulary_model(model)
    return load_task_model(kind, folder, labels=find_task(folder)[0].labels, needs_head=True)

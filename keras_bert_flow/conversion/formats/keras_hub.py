"""Model format: presets of KerasHub, the successor of keras-nlp."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from keras_bert_flow.conversion.directory_files import read_json, write_json
from keras_bert_flow.conversion.formats.format import Checkpoint, Format
from keras_bert_flow.conversion.formats.huggingface import copy_files
from keras_bert_flow.conversion.formats.keras_hub_settings import (
    BACKBONE,
    CONFIG,
    METADATA,
    PREPROCESSORS,
    TASK,
    TRANSFORMERS,
    read_model,
    read_tokenizer,
    serialise,
    write_tokenizer,
)
from keras_bert_flow.conversion.formats.keras_hub_weights import Fit, fit, read_model_weights, write_model_weights
from keras_bert_flow.conversion.sentence_files import read_max_tokens, read_sentence_files, write_sentence_files
from keras_bert_flow.conversion.tables.keras_hub import CLASSIFIER, EMBEDDER, MASKED_LM, MODEL_WEIGHTS
from keras_bert_flow.text.tokenizers.settings import FAST_TOKENIZER
from keras_bert_flow.text.tokenizers.wordpiece import SETTINGS

PREPROCESSOR, SHARDED = "preprocessor.json", "model.weights.json"
LAYOUT = "0.32.0"  # version of keras_hub whose file layout this is
MASKING = {
    "mask_selection_rate": 0.15,
    "mask_selection_length": 96,
    "mask_token_rate": 0.8,
    "random_token_rate": 0.1,
}  # KerasHub's defaults


class KerasHub(Format):
    """KerasHub presets."""

    title = "KerasHub"
    dtypes = ("float32", "bfloat16", "float16")

    def recognise(self, path: Path) -> bool:
        return (path / CONFIG).is_file() and any((path / name).is_file() for name in (MODEL_WEIGHTS, SHARDED))

    def read(self, path: Path, cased: bool | None) -> Checkpoint:
        if (path / SHARDED).is_file():
            raise ValueError(
                f"Weights must be in one file. Received: {path / SHARDED}, of several. Save the preset again with "
                "max_shard_size=None."
            )
        model = read_model(path)
        tensors, weight_remarks = read_model_weights(model, path)
        files, remarks = read_tokenizer(path, model.shape.vocabulary_size, model.max_tokens)
        companions = _make_sentence_files(model.shape.hidden_dim, model.max_tokens, **model.pooling)
        return Checkpoint(model.config, tensors, files, companions, (*model.remarks, *weight_remarks, *remarks))

    def check(self, checkpoint: Checkpoint) -> None:
        fit(checkpoint)

    def write(self, checkpoint: Checkpoint, folder: Path, dtype: str) -> tuple[str, ...]:
        found = fit(checkpoint)
        with _staged({**checkpoint.tokenizer, **checkpoint.companions}) as source:
            tokenizer = write_tokenizer(found.hub, source, folder)
            pooling = read_sentence_files(source) if found.task == EMBEDDER else {}
            length = _choose_length(found, source)
        backbone = serialise(found.hub, BACKBONE, _describe_backbone(found), dtype)
        objects = {CONFIG: backbone, FAST_TOKENIZER: tokenizer}
        if found.task:
            objects[PREPROCESSOR] = _make_preprocessor(found, found.task, tokenizer, length)
            options = _describe_task(found, checkpoint.config, pooling)
            fields = {"backbone": backbone, "preprocessor": objects[PREPROCESSOR], **options}
            objects[TASK] = serialise(found.hub, found.task, fields)
        for name, content in objects.items():
            if content is not None:
                write_json(folder / name, content)
        parameters, remarks = write_model_weights(found, checkpoint, folder, dtype)
        write_json(folder / METADATA, _describe_preset(found, checkpoint.config, parameters))
        return (*remarks, *_list_left_out(found, checkpoint, tokenizer is not None))


@contextmanager
def _staged(files: Mapping[str, Path | bytes]) -> Iterator[Path]:
    """Yield a folder with the files of a checkpoint, given as paths or bytes."""
    with tempfile.TemporaryDirectory() as folder:
        copy_files(files, Path(folder))
        yield Path(folder)


def _make_sentence_files(hidden_dim: int, max_tokens: int, **pooling: Any) -> dict[str, bytes]:
    """Return the files for `sentence_transformers`; none without a pooling."""
    if not pooling:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        write_sentence_files(Path(folder), hidden_dim, max_tokens=max_tokens, **pooling)
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def _choose_length(found: Fit, source: Path) -> int:
    """Return the preprocessor's maximum length in tokens, at most the model's number of positions."""
    task = read_json(source / TASK) if (source / TASK).is_file() else {}
    settings = read_json(source / SETTINGS) if (source / SETTINGS).is_file() else {}
    lengths = (read_max_tokens(source), task.get("sequence_length"), settings.get("model_max_length"))
    return min([found.shape.max_positions, *(length for length in lengths if type(length) is int and length > 2)])


def _describe_backbone(found: Fit) -> dict[str, Any]:
    sizes = {theirs: getattr(found.shape, ours) for ours, theirs in found.hub.settings.items()}
    return sizes | dict(found.hub.options)


def _make_preprocessor(found: Fit, task: str, tokenizer: dict[str, Any] | None, length: int) -> dict[str, Any] | None:
    if tokenizer is None:
        return None
    fields = {"tokenizer": tokenizer, "config_file": PREPROCESSOR, "sequence_length": length, "truncate": "round_robin"}
    fields |= MASKING if task == MASKED_LM else {}
    return serialise(found.hub, PREPROCESSORS[task], fields)


def _describe_task(found: Fit, config: Mapping[str, Any], pooling: Mapping[str, Any]) -> dict[str, Any]:
    if found.task == EMBEDDER:
        return {"pooling_mode": pooling["pooling"], "normalize": pooling["normalize"]}
    if found.task != CLASSIFIER:
        return {}
    rate = config.get(found.table.classifier_dropout)
    fields = {"num_classes": found.num_classes, "activation": "linear"}
    fields |= {"dropout": found.shape.dropout_rate if rate is None else rate}
    return fields | ({} if found.hub.has_pooler else {"hidden_dim": found.shape.hidden_dim})


def _describe_preset(found: Fit, config: Mapping[str, Any], parameters: int) -> dict[str, Any]:
    return {
        "keras_version": version("keras"),
        "keras_hub_version": LAYOUT,
        "parameter_count": parameters,
        "tasks": sorted(found.hub.heads),
        TRANSFORMERS: dict(config),
    }


def _list_left_out(found: Fit, checkpoint: Checkpoint, has_tokenizer: bool) -> list[str]:
    sentence_files = _make_sentence_files(1, 1, pooling="mean", normalize=True) if found.task == EMBEDDER else {}
    left = [name for name in checkpoint.companions if name not in sentence_files]
    remarks = [f"{', '.join(left)} left out"] if left else []
    if checkpoint.tokenizer and not has_tokenizer:
        remarks.append(f"tokenizer left out, as that of KerasHub's {found.hub.prefix} is {found.hub.tokenizer}")
    return remarks

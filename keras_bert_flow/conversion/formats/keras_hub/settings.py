"""Read the settings of a KerasHub preset as fields of Hugging Face's `config.json`."""

from pathlib import Path
from typing import Any, NamedTuple

from keras_bert_flow.conversion.directory_files import read_json
from keras_bert_flow.conversion.formats.keras_hub.objects import (
    BACKBONE,
    PREPROCESSORS,
    HubObject,
    read_number,
    read_object,
)
from keras_bert_flow.conversion.formats.keras_hub.tokenizer import find_pad_id
from keras_bert_flow.conversion.hf_config import (
    MLM_ACTIVATION,
    MLM_EPSILON,
    make_hf_config,
    make_label_fields,
    number_labels,
    read_labels,
    read_shape,
)
from keras_bert_flow.conversion.tables.keras_hub import (
    CLASSIFIER,
    EMBEDDER,
    HEAD_EPSILON,
    HUB_FAMILIES,
    MASKED_LM,
    HubFamily,
)
from keras_bert_flow.conversion.tables.registry import find_table
from keras_bert_flow.conversion.tables.table import FamilyTable
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.registry import find_family
from keras_bert_flow.terminal import abridge

CONFIG, TASK, METADATA = "config.json", "task.json", "metadata.json"
# Key in `metadata.json`, which KerasHub does not read, for what its own settings cannot hold, such as labels.
TRANSFORMERS = "transformers_config"
ARCHITECTURES = {None: "Model", EMBEDDER: "Model", MASKED_LM: "ForMaskedLM", CLASSIFIER: "ForSequenceClassification"}
_ACTIVATIONS = ("linear", "softmax", "sigmoid", None)


class HubModel(NamedTuple):
    """Settings from the JSON files of a preset.

    Attributes:
        architecture: class of `transformers`, without the family.
        task: class of KerasHub with the head, one of `HubFamily.heads`; None without a head.
        num_classes: number of classes of a classifier, else 0.
        config: fields of Hugging Face's `config.json`.
        is_ours: whether the preset was written by this package.
        pooling: pooling of an embedder, as in `sentence_files`.
        max_tokens: maximum length in tokens of the preprocessor.
        remarks: what is changed by reading, one clause each.
    """

    table: FamilyTable
    shape: EncoderShape
    architecture: str
    task: str | None
    num_classes: int
    config: dict[str, Any]
    is_ours: bool
    pooling: dict[str, Any]
    max_tokens: int
    remarks: tuple[str, ...]


def read_model(folder: Path) -> HubModel:
    """Read the settings of a preset.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or describes a model that this package does not compute.
    """
    backbone = read_object(folder / CONFIG)
    if backbone.kind != BACKBONE:
        raise ValueError(f"{backbone.source}: must describe a backbone. Received: {backbone.kind}. Check the path.")
    task = read_object(folder / TASK) if (folder / TASK).is_file() else None
    if task is not None and (task.family != backbone.family or task.kind not in PREPROCESSORS):
        raise ValueError(
            f"{task.source}: must be of a task on the backbone of config.json. Received: {task.kind} of {task.family} "
            f"beside a backbone of {backbone.family}. Do the files belong together?"
        )
    hub, table = HUB_FAMILIES[backbone.family], find_table(backbone.family)
    kind, stored = task.kind if task else None, _read_stored(folder, backbone.family)
    architecture = ARCHITECTURES[kind]
    shape = _make_shape(folder, backbone, hub, kind, stored)
    config = make_hf_config(shape.describe() | {"family": backbone.family}, architecture)
    lacking = ("attention_dropout_rate", "initializer_range")  # settings that KerasHub lacks
    free = {setting.theirs for setting in table.settings if setting.ours in lacking}
    config |= {name: value for name, value in stored.items() if name not in config or name in free}
    remarks, num_classes = [], 0
    if task and kind == CLASSIFIER:
        num_classes = read_number(task, "num_classes")
        remarks += _describe_classifier(task, shape, table, config, num_classes)
    own = [f"{name}={config[name]}" for name in (MLM_ACTIVATION, MLM_EPSILON) if name in config]
    remarks += [f"{' and '.join(own)} for the masked LM, which transformers passes over"] if own else []
    read_shape(config, str(folder / METADATA))  # checks the fields of `metadata.json`, which may have any type
    return HubModel(
        table,
        shape,
        architecture,
        kind,
        num_classes,
        config,
        bool(stored),
        _read_pooling(task) if task and kind == EMBEDDER else {},
        _read_max_tokens(task, shape),
        tuple(remarks),
    )


def _make_shape(
    folder: Path, backbone: HubObject, hub: HubFamily, task: str | None, stored: dict[str, Any]
) -> EncoderShape:
    for name, known in hub.options.items():
        if backbone.config.get(name, known) != known:
            raise ValueError(f"{backbone.source}: `{name}` must be {known}. Received: {backbone.config[name]!r}.")
    kinds = {"dropout_rate": float}
    sizes = {ours: read_number(backbone, theirs, kinds.get(ours, int)) for ours, theirs in hub.settings.items()}
    kind = find_family(backbone.family).shape
    sizes |= {"attention_dropout_rate": sizes["dropout_rate"], "hidden_act": hub.hidden_act}
    if task == MASKED_LM and hub.mlm_hidden_act != hub.hidden_act:
        sizes["mlm_hidden_act"] = hub.mlm_hidden_act
    if task == MASKED_LM and hub.layer_norm_epsilon != HEAD_EPSILON:
        sizes["mlm_layer_norm_epsilon"] = HEAD_EPSILON
    if hub.folds_positions:
        stored_id = stored.get("pad_token_id")
        sizes["pad_token_id"] = stored_id if type(stored_id) is int else find_pad_id(folder)
    try:
        return kind(**sizes)
    except ValueError as error:
        raise ValueError(f"{backbone.source}: {error}") from None


def _read_stored(folder: Path, family: str) -> dict[str, Any]:
    """Return the settings that this package stored in the preset; empty if it did not write the preset."""
    path = folder / METADATA
    stored = read_json(path).get(TRANSFORMERS, {}) if path.is_file() else {}
    if stored and (not isinstance(stored, dict) or stored.get("model_type") != family):
        raise ValueError(f"{path}: `{TRANSFORMERS}` must be of the family {family}. Do the files belong together?")
    return stored


def _describe_classifier(
    task: HubObject, shape: EncoderShape, table: FamilyTable, config: dict[str, Any], num_classes: int
) -> list[str]:
    """Add the fields of a classifier to `config`, and return remarks."""
    activation = task.config.get("activation")
    if activation not in _ACTIVATIONS:
        raise ValueError(
            f"{task.source}: `activation` must be linear, softmax or sigmoid. Received: {abridge(ascii(activation))}."
        )
    if task.config.get("hidden_dim", shape.hidden_dim) != shape.hidden_dim:
        raise ValueError(
            f"{task.source}: `hidden_dim` must be that of the backbone, {shape.hidden_dim}. Received: "
            f"{abridge(ascii(task.config['hidden_dim']))}."
        )
    config[table.classifier_dropout] = read_number(task, "dropout", float)
    if "id2label" not in config:
        config |= make_label_fields(number_labels(num_classes))
    names = config["id2label"]
    read_labels(config, task.source)  # checks that `id2label` maps numbers to names
    if len(names) != num_classes:
        raise ValueError(
            f"{task.source}: must have as many classes as labels. Received: num_classes={num_classes}, {len(names)} "
            f"labels in {METADATA}. Do the files belong together?"
        )
    if activation == "sigmoid":
        config["problem_type"] = "multi_label_classification"
    return [f"{activation} left out, as the model gives logits"] if activation not in ("linear", None) else []


def _read_pooling(task: HubObject) -> dict[str, Any]:
    pooling, normalize = task.config.get("pooling_mode", "mean"), task.config.get("normalize", True)
    if pooling not in ("mean", "max", "cls") or not isinstance(normalize, bool):
        raise ValueError(
            f"{task.source}: `pooling_mode` must be mean, max or cls, and `normalize` true or false. Received: "
            f"{abridge(ascii(pooling))}, {abridge(ascii(normalize))}."
        )
    return {"pooling": pooling, "normalize": normalize}


def _read_max_tokens(task: HubObject | None, shape: EncoderShape) -> int:
    preprocessor = task.config.get("preprocessor") if task else None
    config = preprocessor.get("config") if isinstance(preprocessor, dict) else None
    length = config.get("sequence_length") if isinstance(config, dict) else None
    return min(length, shape.max_positions) if type(length) is int and length >= 3 else shape.max_positions

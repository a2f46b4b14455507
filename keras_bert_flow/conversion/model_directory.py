"""Write and read model directories: Hugging Face's layout, so that `transformers` loads ours and we load theirs."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_flow.conversion import huggingface as hf
from keras_bert_flow.conversion.directory_files import (
    check_vocabulary,
    read_json,
    write_card,
    write_json,
    write_vocabulary,
)
from keras_bert_flow.conversion.hf_config import make_hf_config, read_hf_config, read_labels
from keras_bert_flow.conversion.tensor_file import read_tensors, write_tensors
from keras_bert_flow.models.backbone import BertBackbone
from keras_bert_flow.models.classifier import BertTextClassifier
from keras_bert_flow.models.masked_lm import BertMaskedLM
from keras_bert_flow.models.pretrainer import BertPretrainer
from keras_bert_flow.models.values import read_variable

OVERRIDES = ("dropout_rate", "attention_dropout_rate", "dtype", "name")
# What Hugging Face calls each model, and its heads.
ARCHITECTURES = {
    BertBackbone: ("BertModel", {}),
    BertMaskedLM: ("BertForMaskedLM", hf.MASKED_LM_HEAD),
    BertPretrainer: ("BertForPreTraining", hf.PRETRAINING_HEADS),
    BertTextClassifier: ("BertForSequenceClassification", hf.CLASSIFIER_HEAD),
}


def save_model_directory(model, path, vocabulary_path=None, cased=False, labels=None, card=None) -> None:
    """Write a model as `transformers` reads it; the caller publishes the folder.

    Args:
        model: a `BertBackbone`, `BertPretrainer`, `BertMaskedLM` or `BertTextClassifier`.
        vocabulary_path: the `vocab.txt` to put in.
        cased: whether the vocabulary keeps case and accents.
        labels: names of a classifier's classes in the order of their ids; by default its own `labels`.
        card: text of `README.md`; by default a few lines.
    Raises:
        ValueError: `vocab.txt` or `labels` are not as many as the model has, or a weight is NaN or infinite.
        TypeError: another kind of model.
    """
    if type(model) not in ARCHITECTURES:
        names = ", ".join(kind.__name__ for kind in ARCHITECTURES)
        raise TypeError(f"A model directory holds one of {names}. Received: {type(model).__name__}.")
    architecture, heads = ARCHITECTURES[type(model)]
    backbone = getattr(model, "backbone", model)
    tensors = _export_tensors(model, backbone, heads)
    config = make_hf_config(backbone.get_config(), architecture)
    if isinstance(model, BertTextClassifier):
        config |= _label_fields(model, labels)
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    if vocabulary_path is not None:
        check_vocabulary(Path(vocabulary_path), backbone.vocabulary_size)
        write_vocabulary(folder, vocabulary_path, cased, backbone.max_positions)
    write_json(folder / "config.json", config)
    write_tensors(folder / "model.safetensors", tensors)
    write_card(folder, card, architecture, backbone)


def load_backbone(path, **overrides) -> BertBackbone:
    """Load the encoder of any BERT model directory; that of a masked LM has no pooler.

    Args:
        overrides: `dropout_rate`, `attention_dropout_rate`, `dtype` or `name`.
    Raises:
        FileNotFoundError: the folder, its config.json or its model.safetensors is missing.
        ValueError: a file is damaged, does not fit the others or is not BERT's; one line that names the file.
    """
    _check_overrides(overrides)
    folder, config, tensors = _read_directory(path)
    backbone = _make_backbone(folder, config, {**overrides, "use_pooler": _has_pooler(tensors)})
    _import_tensors(backbone, backbone, {}, tensors, folder)
    return backbone


def load_pretrainer(path, **overrides) -> BertPretrainer:
    """Load the encoder and both pre-training heads; arguments and errors as for `load_backbone`."""
    _check_overrides(overrides)
    folder, config, tensors = _read_directory(path)
    backbone = _make_backbone(folder, config, {**overrides, "name": "bert_backbone"})
    model = BertPretrainer(backbone, name=overrides.get("name", "bert_pretrainer"))
    _import_tensors(model, backbone, hf.PRETRAINING_HEADS, tensors, folder)
    return model


def load_masked_lm(path, **overrides) -> BertMaskedLM:
    """Load the encoder, without its pooler, and the masked-token head; arguments and errors as for `load_backbone`."""
    _check_overrides(overrides)
    folder, config, tensors = _read_directory(path)
    backbone = _make_backbone(folder, config, {**overrides, "name": "bert_backbone", "use_pooler": False})
    model = BertMaskedLM(backbone, name=overrides.get("name", "bert_masked_lm"))
    _import_tensors(model, backbone, hf.MASKED_LM_HEAD, tensors, folder)
    return model


def load_for_pretraining(
    path, has_sentence_task: bool, **overrides
) -> tuple[BertPretrainer | BertMaskedLM, tuple[str, ...]]:
    """Load a model to train further, with new heads where the directory has none; return the names of these, too.

    Args:
        has_sentence_task: load a `BertPretrainer`, else a `BertMaskedLM`.
        overrides: as for `load_backbone`, which says what is raised as well.
    """
    _check_overrides(overrides)
    folder, config, tensors = _read_directory(path)
    backbone = _make_backbone(folder, config, {**overrides, "name": "bert_backbone", "use_pooler": has_sentence_task})
    model = BertPretrainer(backbone) if has_sentence_task else BertMaskedLM(backbone)
    heads = ARCHITECTURES[type(model)][1]
    tables = hf.POOLER | heads
    missing = {}  # an ordered set
    for variable in model.weights:
        layer = variable.path.rpartition("/")[0]
        if (layer in tables or variable.path in tables) and not tensors.keys() & hf.tensor_names(variable.path, tables):
            missing[layer] = None
    _import_tensors(model, backbone, heads, tensors, folder, missing)
    return model, tuple(missing)


def load_classifier(path, num_classes=None, labels=None, **overrides) -> BertTextClassifier:
    """Load a classifier, or put a new one on the encoder and pooler of another model.

    A masked LM has no pooler; it gets a new one, as it does in `transformers`.

    Args:
        num_classes: needed for a new head, if `labels` are not given.
        labels: names of the classes in the order of their ids; by default those in the directory.
        overrides: as for `load_backbone`; `dropout_rate` also holds before the classifier.
    Raises:
        FileNotFoundError: as for `load_backbone`.
        ValueError: as for `load_backbone`, or the directory's classifier has other classes than asked for.
    """
    _check_overrides(overrides)
    folder, config, tensors = _read_directory(path)
    has_head = "classifier.weight" in tensors
    stored = read_labels(config, str(folder / "config.json")) if has_head else None
    if labels is not None and stored is not None and tuple(labels) != stored:
        raise ValueError(
            f"{folder / 'config.json'}: `labels` must be those of the model. Received: labels={list(labels)}, "
            f"id2label={list(stored)}. To start a new head, use BertTextClassifier(BertBackbone.from_preset(...), ...)."
        )
    labels = stored if labels is None else tuple(labels)
    if has_head:
        stored_classes = tensors["classifier.weight"].shape[0]
        _check_classes(folder, stored_classes, num_classes, labels)
        num_classes = stored_classes
    elif num_classes is None and labels is None:
        raise ValueError(f"{folder}: there is no classifier in it, so a new one needs `num_classes` or `labels`.")
    backbone = _make_backbone(folder, config, {**overrides, "name": "bert_backbone"})
    stored_rate = config.get("classifier_dropout")
    model = BertTextClassifier(
        backbone,
        num_classes=len(labels) if num_classes is None else num_classes,
        dropout_rate=backbone.dropout_rate if "dropout_rate" in overrides or stored_rate is None else stored_rate,
        labels=labels,
        name=overrides.get("name", "bert_text_classifier"),
    )
    is_new = () if has_head or _has_pooler(tensors) else hf.POOLER
    _import_tensors(model if has_head else backbone, backbone, hf.CLASSIFIER_HEAD, tensors, folder, is_new)
    return model


def _read_directory(path):
    folder = Path(path)
    config = read_json(folder / "config.json")
    tensors = read_tensors(folder / "model.safetensors")
    return folder, config, {hf.normalise_name(name): array for name, array in tensors.items()}


def _make_backbone(folder: Path, config: dict[str, Any], overrides: dict[str, Any]) -> BertBackbone:
    source = folder / "config.json"
    settings = read_hf_config(config, str(source))
    if (folder / "vocab.txt").is_file():
        check_vocabulary(folder / "vocab.txt", settings["vocabulary_size"])
    try:
        return BertBackbone(**(settings | overrides))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def _export_tensors(model, backbone: BertBackbone, heads: dict[str, str]) -> dict:
    table = hf.backbone_table(backbone.num_layers)
    # A bare encoder has bare names; beside heads its names start with `bert.`.
    table = {ours: f"bert.{theirs}" for ours, theirs in table.items()} | heads if heads else table
    tensors = {}
    for variable in model.weights:
        value = read_variable(variable).astype("float32")
        if not np.isfinite(value).all():
            raise ValueError(
                f"Weights must be numbers. Received: {variable.path} with NaN or infinity. Save none such."
            )
        names = hf.tensor_names(variable.path, table)
        tensors |= hf.export_variable(variable.path, value, names, backbone.num_heads)
    return tensors


def _has_pooler(tensors: dict) -> bool:
    return any(name.startswith("pooler.") for name in tensors)


def _import_tensors(
    model, backbone: BertBackbone, heads: dict[str, str], tensors: dict, folder: Path, is_new: Collection[str] = ()
) -> None:
    """Read every weight of a model, but for the layers that are new."""
    table = hf.backbone_table(backbone.num_layers) | heads
    source = folder / "model.safetensors"
    for variable in model.weights:
        if variable.path.rpartition("/")[0] in is_new:
            continue
        names = hf.tensor_names(variable.path, table)
        expected = hf.tensor_shape(variable.path, tuple(variable.shape), names)
        for name in names:
            if name not in tensors:
                raise ValueError(f"{source}: there is no tensor `{name}`. Is it a {type(model).__name__}?")
            if tensors[name].shape != expected:
                raise ValueError(
                    f"{source}: `{name}` must have the shape {expected}, by config.json. "
                    f"Received: {tensors[name].shape}. Do the two files belong together?"
                )
        variable.assign(hf.import_variable(variable.path, [tensors[name] for name in names], backbone.num_heads))


def _label_fields(model: BertTextClassifier, labels) -> dict[str, Any]:
    labels = labels or model.labels or [f"LABEL_{index}" for index in range(model.num_classes)]
    if len(labels) != model.num_classes:
        raise ValueError(
            f"`labels` must name every class. Received: {len(labels)} labels, num_classes={model.num_classes}."
        )
    return {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
        "classifier_dropout": model.dropout_rate,
        "problem_type": "single_label_classification",
    }


def _check_classes(folder: Path, stored_classes: int, num_classes: int | None, labels) -> None:
    asked = num_classes if num_classes is not None else len(labels) if labels is not None else stored_classes
    if asked != stored_classes or (labels is not None and len(labels) != stored_classes):
        raise ValueError(
            f"{folder}: its classifier has {stored_classes} classes. Received: num_classes={num_classes}, "
            f"labels={labels}. To start a new head, use BertTextClassifier(BertBackbone.from_preset(...), ...)."
        )


def _check_overrides(overrides: dict[str, Any]) -> None:
    unknown = sorted(set(overrides) - set(OVERRIDES))
    if unknown:
        raise ValueError(f"Overrides must be among {', '.join(OVERRIDES)}. Received: {', '.join(unknown)}.")

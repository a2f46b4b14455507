"""Load the model of a task from a model directory, with a new head if the directory has none."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_bert_flow.conversion.codecs.tensors import TensorMapping
from keras_bert_flow.conversion.directory_check import require_words_head
from keras_bert_flow.conversion.heads import find_saved_as, has_head
from keras_bert_flow.conversion.hf_config import POOLING_FIELD, read_labels
from keras_bert_flow.conversion.reading import OVERRIDES, check_overrides, make_backbone, read_directory
from keras_bert_flow.conversion.sentence_files import read_sentence_files
from keras_bert_flow.conversion.tables.registry import find_table
from keras_bert_flow.conversion.weights import has_pooler, import_tensors
from keras_bert_flow.models.backbone import Backbone
from keras_bert_flow.models.poolings import BAG_OF_WORDS, CLS
from keras_bert_flow.models.saved_as import CLASSES, CLASSIFIER_HEAD, POOLING, TEXT_POOLING, SavedAs

NEW_HEAD_ADVICE = (
    "To start a new head, use `kbf finetune --new-head` (finetuning.new_head: true), or in Python "
    "from_preset(..., new_head=True)."
)


def load_with_head(model_class: type, path, new_head: bool = False, **overrides) -> tuple[Any, bool]:
    """Load the model of a task; also return whether its head is new.

    Args:
        new_head: ignore the directory's head, if any.
        overrides: as for `load_backbone`, and the options of the model: `num_classes` or `labels`, required for a new
            head with classes, `pooling` and so on. `dropout_rate` also applies before the head.
    Raises:
        FileNotFoundError, ValueError: as for `load_backbone`, the directory's head has other classes, or the directory
            lacks the bag-of-words head that the pooling needs.
    """
    saved = find_saved_as(model_class)
    check_overrides(overrides, saved.options)
    folder, config, tensors = read_directory(path)
    table = find_table(config["model_type"])
    is_new = new_head or not has_head(saved, config, tensors, table)
    shared = {name: overrides[name] for name in OVERRIDES if name in overrides and name != "name"}
    arguments = {name: value for name, value in overrides.items() if name in ("name", *saved.options)}
    use_pooler = saved.use_pooler
    if _pools_texts(saved):
        arguments["pooling"] = _choose_pooling(folder, config, is_new, overrides.get("pooling"))
        use_pooler = arguments["pooling"] == CLS
        if arguments["pooling"] == BAG_OF_WORDS:
            require_words_head(folder, tensors)
    if use_pooler and not is_new and saved.head and not has_pooler(table.family, saved, tensors):
        raise ValueError(
            f"{tensors.path}: there is no tensor `{table.name_pooler(saved.architecture)}.weight`, from which its "
            f"{saved.noun} was trained to predict. Copy or save it again. {NEW_HEAD_ADVICE}"
        )
    backbone = make_backbone(folder, config, **shared, use_pooler=use_pooler)
    if set(CLASSES) <= set(saved.options):
        chosen = overrides.get("num_classes"), overrides.get("labels"), arguments.get("pooling")
        arguments |= _choose_classes(folder, backbone, config, tensors, saved, is_new, *chosen)
    if saved.head == CLASSIFIER_HEAD:
        stored_rate = config.get(table.classifier_dropout)
        is_given = "dropout_rate" in overrides or stored_rate is None
        arguments["dropout_rate"] = backbone.dropout_rate if is_given else stored_rate
    if set(POOLING) <= set(saved.options):
        arguments = read_sentence_files(folder) | arguments
    model = model_class(backbone, **arguments)
    new_layers = [*(saved.head if is_new else ()), *(() if has_pooler(table.family, saved, tensors) else table.pooler)]
    import_tensors(model, backbone, model.saved_as, tensors, new_layers)
    return model, is_new


def _pools_texts(saved: SavedAs) -> bool:
    return saved.head == CLASSIFIER_HEAD and set(TEXT_POOLING) <= set(saved.options)


def _choose_pooling(folder: Path, config: dict[str, Any], is_new: bool, pooling: str | None) -> str:
    """Return the pooling of the directory's head, or the requested one for a new head."""
    stored = config.get(POOLING_FIELD) or CLS
    if is_new:
        return pooling or CLS
    if pooling not in (None, stored):
        raise ValueError(
            f"{folder / 'config.json'}: `pooling` must be that of the model's head. Received: pooling={pooling!r}, "
            f"{POOLING_FIELD}={stored!r}. Set finetuning.pooling={stored} to keep this head. {NEW_HEAD_ADVICE}"
        )
    return stored


def _choose_classes(
    folder: Path,
    backbone: Backbone,
    config: dict[str, Any],
    tensors: TensorMapping,
    saved: SavedAs,
    is_new: bool,
    num_classes: int | None,
    labels: Sequence[str] | None,
    pooling: str | None,
) -> dict[str, Any]:
    """Return `num_classes` and `labels`: those of the directory's head, or the requested ones."""
    labels = tuple(labels) if labels else None
    if is_new:
        if num_classes is None and labels is None:
            raise ValueError(f"{folder}: there is no {saved.noun} in it, so a new one needs `num_classes` or `labels`.")
        return {"num_classes": len(labels or ()) if num_classes is None else num_classes, "labels": labels}
    stored = read_labels(config, str(folder / "config.json"))
    if labels is not None and stored is not None and labels != stored:
        raise ValueError(
            f"{folder / 'config.json'}: `labels` must be those of the model. Received: labels={list(labels)}, "
            f"id2label={list(stored)}. {_advise_labels(labels, stored)}{NEW_HEAD_ADVICE}"
        )
    labels = stored if labels is None else labels
    kernel = f"{find_table(backbone.family).name_heads(CLASSIFIER_HEAD, saved.architecture)['classifier']}.weight"
    stored_classes, *width = tensors.shapes[kernel]
    expected = backbone.shape.embedding_dim if pooling == BAG_OF_WORDS else backbone.hidden_dim
    if width != [expected]:
        raise ValueError(
            f"{tensors.path}: `{kernel}` must have the shape (classes, {expected}), by config.json. "
            f"Received: {tensors.shapes[kernel]}. Do the two files belong together?"
        )
    if num_classes not in (None, stored_classes) or (labels is not None and len(labels) != stored_classes):
        may_be_some = labels is not None and len(labels) < stored_classes
        keeping = "Name all of its classes in task.labels, in their order, to keep this head. " if may_be_some else ""
        raise ValueError(
            f"{folder}: its {saved.noun} has {stored_classes} classes. Received: num_classes={num_classes}, "
            f"labels={labels}. {keeping}{NEW_HEAD_ADVICE}"
        )
    return {"num_classes": stored_classes, "labels": labels}


def _advise_labels(labels: Sequence[str], stored: Sequence[str]) -> str:
    """Return how the labels of a task can be those of the model, whose head is then kept; "" if they cannot be."""
    if set(labels) <= set(stored):
        return "Set task.labels to those of id2label, in their order, to keep this head. "
    if {name.casefold() for name in labels} <= {name.casefold() for name in stored}:
        return "Spell the labels of the tables as in id2label, and set task.labels to these, to keep this head. "
    return ""

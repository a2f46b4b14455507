"""Save and load model directories in Hugging Face's layout, compatible with `transformers` in both directions."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from keras_bert_flow.conversion.adapters import (
    ADAPTER_CONFIG,
    ADAPTER_FILE,
    BASE,
    PREFIX,
    check_place,
    describe_adapter,
    name_base,
)
from keras_bert_flow.conversion.codecs.safetensors_file import FILE, TensorMapping, write_tensors
from keras_bert_flow.conversion.directory import check_words_head
from keras_bert_flow.conversion.directory_files import (
    POOLING_FIELD,
    TIED_FIELD,
    check_vocabulary,
    make_hf_config,
    make_label_fields,
    name_own_kernel,
    number_labels,
    read_labels,
    write_json,
    write_vocabulary,
)
from keras_bert_flow.conversion.model_card import Card, write_card
from keras_bert_flow.conversion.sentence_files import read_sentence_files, write_sentence_files
from keras_bert_flow.conversion.tables.table import FamilyTable, find_table
from keras_bert_flow.conversion.weights import (
    OVERRIDES,
    check_overrides,
    export_adapter,
    export_tensors,
    has_pooler,
    import_tensors,
    is_untied,
    list_missing,
    make_backbone,
    read_directory,
)
from keras_bert_flow.files.documents import read_file
from keras_bert_flow.files.paths import check_local
from keras_bert_flow.models.backbone import Backbone
from keras_bert_flow.models.families.family import find_family
from keras_bert_flow.models.pretraining.bag_of_words import BagOfWordsPretrainer
from keras_bert_flow.models.saved_as import (
    BAG_OF_WORDS,
    CLASSES,
    CLASSIFIER_HEAD,
    CLS,
    MASKED_LM_HEAD,
    MASKED_LM_TABLE,
    POOLING,
    PREDICTION_HEAD,
    TASK_HEADS,
    TEXT_POOLING,
    SavedAs,
)

# Determine which head a model directory holds.


def find_saved_as(model) -> SavedAs:
    """Return the `SavedAs` of a model or model class, which says how it is saved.

    Raises:
        TypeError: a model directory cannot hold it.
    """
    saved = getattr(model, "saved_as", None)
    if not isinstance(saved, SavedAs):
        name = model.__name__ if isinstance(model, type) else type(model).__name__
        raise TypeError(f"A model directory holds a Backbone or a model with a head on it. Received: {name}.")
    return saved


def has_head(saved: SavedAs, config: dict[str, Any], tensors: TensorMapping, table: FamilyTable) -> bool:
    """Return whether a directory holds the head of a task, rather than another task's head of the same name."""
    if not saved.head:
        return True
    theirs = {name.removeprefix(table.class_prefix) for name in config.get("architectures") or ()}
    others = [TASK_HEADS.find(kind).saved_as for kind in TASK_HEADS]
    names = table.name_heads(saved.head, saved.architecture)
    namesakes = {
        other.architecture
        for other in others
        if {*table.name_heads(other.head, other.architecture).values()} == {*names.values()}
    }
    if saved.architecture not in theirs and namesakes & theirs:
        return False
    if saved.problem_type is not None and config.get("problem_type") not in (None, saved.problem_type):
        return False
    kernels = [f"{names[layer]}.weight" for layer in saved.head]
    fewest, most = saved.outputs
    return all(fewest <= (*tensors.shapes.get(kernel, ()), 0)[0] <= most for kernel in kernels)


# Load the model of a task from a model directory, with a new head if the directory has none.

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
    directory = read_directory(path)
    folder, (config, tensors, _) = directory.folder, directory.opened
    table = find_table(config["model_type"])
    is_new = new_head or not has_head(saved, config, tensors, table)
    shared = {name: overrides[name] for name in OVERRIDES if name in overrides and name != "name"}
    arguments = {name: value for name, value in overrides.items() if name in ("name", *saved.options)}
    use_pooler = saved.use_pooler
    if saved.head == CLASSIFIER_HEAD and set(TEXT_POOLING) <= set(saved.options):
        # The pooling of the directory's head, or the requested one for a new head; else that of `transformers`.
        stored, asked = config.get(POOLING_FIELD) or CLS, overrides.get("pooling")
        if not is_new and asked not in (None, stored):
            raise ValueError(
                f"{folder / 'config.json'}: `pooling` must be that of the model's head. Received: pooling={asked!r}, "
                f"{POOLING_FIELD}={stored!r}. Set finetuning.pooling={stored} to keep this head. {NEW_HEAD_ADVICE}"
            )
        usual = stored if stored in table.poolings else CLS
        arguments["pooling"] = (asked or usual) if is_new else stored
        use_pooler = arguments["pooling"] == CLS
        if arguments["pooling"] == BAG_OF_WORDS:
            check_words_head(directory)
    finds_pooler = has_pooler(directory.shape, table, saved, tensors)
    if use_pooler and not is_new and saved.head and not finds_pooler:
        raise ValueError(
            f"{tensors.path}: there is no tensor `{table.name_pooler(saved.architecture)}.weight`, from which its "
            f"{saved.noun} was trained to predict. Copy or save it again. {NEW_HEAD_ADVICE}"
        )
    backbone = make_backbone(directory, **shared, use_pooler=use_pooler)
    if set(CLASSES) <= set(saved.options):
        chosen = overrides.get("num_classes"), overrides.get("labels"), arguments.get("pooling")
        arguments |= _choose_classes(folder, backbone, config, tensors, saved, is_new, *chosen)
    if saved.head == CLASSIFIER_HEAD:
        stored_rate = config.get(table.classifier_dropout)
        is_given = "dropout_rate" in overrides or stored_rate is None
        arguments["dropout_rate"] = backbone.dropout_rate if is_given else stored_rate
    if set(POOLING) <= set(saved.options):
        arguments = read_sentence_files(folder, directory.files.read) | arguments
    model = model_class(backbone, **arguments)
    new_layers = [*(saved.head if is_new else ()), *(() if finds_pooler else table.pooler)]
    if is_new:  # the transform of a head is that of any other head in the directory, as in `transformers`
        names = table.name_heads(PREDICTION_HEAD, saved.architecture)
        new_layers += [layer for layer, name in names.items() if f"{name}.weight" not in tensors]
    import_tensors(model, backbone, model.saved_as, tensors, new_layers)
    return model, is_new


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


_logger = logging.getLogger(__name__)


def save_model_directory(
    model,
    path,
    vocabulary_path=None,
    cased=None,
    labels=None,
    card=None,
    max_tokens=None,
    task=None,
    adapter_of=None,
    read=read_file,
) -> None:
    """Save a model in the layout that `transformers` reads; the caller publishes the folder.

    Args:
        model: a backbone, a pre-trainer or the model of a task. A `PairEmbedder` is saved like its embedder, a
            `BagOfWordsPretrainer` like its pre-trainer with additional tensors `cls.words.*`.
        vocabulary_path: the `vocab.txt` to include.
        cased: whether the vocabulary keeps case and accents. None: as the files beside it say, otherwise False.
        labels: class names ordered by id; by default the model's own `labels`.
        card: text of `README.md`, or a `Card` of what a run reports; by default what the model is and how to load it.
        max_tokens: maximum text length of an embedder; other models do not store it here.
        task: the task to write as `task.json`, as `kbf.make_task` returns it: needed to keep its columns, a threshold,
            or that texts are pairs.
        adapter_of: address of the model directory with the weights without LoRA; if given, an adapter in `peft`'s
            format, `adapter_config.json` and `adapter_model.safetensors`, is written in place of the weights.
        read: as for `documents.read_json`; reads the vocabulary.
    Raises:
        ValueError: `path` is not on a local disk, the size of `vocab.txt` or `labels` differs from the model's, or a
            weight is NaN or infinite.
        TypeError: a model directory cannot hold such a model.
    """
    folder = check_local(path)
    saved = find_saved_as(model)
    backbone = getattr(model, "backbone", model)
    base = None if adapter_of is None else name_base(adapter_of)
    if base is None:
        files = {FILE: export_tensors(model, backbone, saved)}
    else:
        check_place(folder)
        matrices, rank, alpha = export_adapter(model, backbone, saved)
        fields = describe_adapter(base, find_table(backbone.family), saved.architecture, rank, alpha, matrices)
        files = {ADAPTER_FILE: matrices, ADAPTER_CONFIG: fields}
    config = make_hf_config(backbone.get_config(), saved.architecture) | _describe_head(model, saved, labels)
    if is_untied(saved):
        config[TIED_FIELD] = False
    if own_kernel := name_own_kernel(config, find_table(backbone.family)):
        name = PREFIX + own_kernel if base else own_kernel
        tensors = files[ADAPTER_FILE if base else FILE]
        tensors[name] = tensors[name][..., None]
    folder.mkdir(parents=True, exist_ok=True)
    if vocabulary_path is not None:
        num_pieces = backbone.num_pieces or backbone.vocabulary_size
        check_vocabulary(Path(vocabulary_path), backbone.vocabulary_size, num_pieces, read)
        write_vocabulary(folder, vocabulary_path, cased, backbone.max_positions, read)
    write_json(folder / "config.json", config)
    for name, content in files.items():
        (write_json if name == ADAPTER_CONFIG else write_tensors)(folder / name, content)
    if set(POOLING) <= set(saved.options):
        write_sentence_files(folder, backbone.hidden_dim, model.pooling, model.normalize, max_tokens)
    if task is not None:
        task.save(folder, max_tokens or backbone.max_positions)
    if not isinstance(card, str):
        card = write_card(
            card or Card(), model, backbone, saved, config["architectures"][0], base[BASE] if base else None
        )
    (folder / "README.md").write_text(card, encoding="utf-8")


def load_model(model_class: Any, path, **overrides):
    """Load a model of a class; warn when a head is newly initialised without being asked for.

    Args:
        overrides: `dropout_rate`, `attention_dropout_rate`, `dtype`, `name`, and further options of the class, such as
            `labels`.
    Raises:
        FileNotFoundError: the folder, its config.json or its model.safetensors is missing.
        ValueError: a file is damaged, does not fit the others or is of an unknown family; the message is one line that
            names it.
        TypeError: a model directory cannot hold models of that class.
    """
    if issubclass(model_class, Backbone):
        return load_backbone(path, model_class, **overrides)
    if not find_saved_as(model_class).is_of_task:
        return load_pretrainer(model_class, path, may_be_new=False, **overrides)[0]
    model, is_new = load_with_head(model_class, path, **overrides)
    if is_new and not any(overrides.get(name) for name in CLASSES):
        _logger.warning("%s has no %s: its weights begin anew.", path, model_class.saved_as.noun)
    return model


def load_task_model(
    kind: str, path, labels: Sequence[str] = (), needs_head: bool = False, new_head: bool = False, **overrides
):
    """Load the model for a kind of task, with a new head if the directory has none for it.

    Args:
        kind: as in `Task.kind`.
        labels: class names ordered by id, for a model with classes.
        needs_head: refuse a directory without the head: for prediction, not for training.
        new_head: start from a new head even if the directory has one.
        overrides: as for `load_model`.
    Raises:
        FileNotFoundError, ValueError: as for `load_model`, or the kind is unknown or has no labels.
    Example:
        >>> model = kbf.load_task_model("classification", "model", labels=["negative", "positive"])
        >>> type(model).__name__
        'TextClassifier'
    """
    model, is_new = load_for_finetuning(kind, path, labels, new_head, **overrides)
    if is_new and needs_head:
        noun = TASK_HEADS.find(kind).saved_as.noun
        raise ValueError(f"{path}: there is no {noun} in it. Fine-tune it on such a task first.")
    return model


def load_for_finetuning(
    kind: str, path, labels: Sequence[str] = (), new_head: bool = False, **overrides
) -> tuple[Any, bool]:
    """Load the model for a kind of task as `load_task_model` does; also return whether its head is new."""
    model_class = TASK_HEADS.find(kind)
    if labels:
        if "labels" not in model_class.saved_as.options:
            raise ValueError(f"A model for {kind} has no labels. Received: labels={list(labels)}. Leave them out.")
        overrides["labels"] = labels
    return load_with_head(model_class, path, new_head, **overrides)


def load_backbone(path, kind: type[Backbone] = Backbone, **overrides) -> Backbone:
    """Load the encoder of any model directory; without a pooler if the directory has none.

    Args:
        kind: the backbone class, which may be restricted to one family.
        overrides: `dropout_rate`, `attention_dropout_rate`, `dtype` or `name`.
    Raises:
        FileNotFoundError, ValueError: as for `load_model`.
    """
    check_overrides(overrides)
    directory = read_directory(path)
    config, tensors, _ = directory.opened
    shape, family = directory.shape, config["model_type"]
    use_pooler = has_pooler(shape, find_table(family), kind.saved_as, tensors)
    use_pooler = use_pooler and (shape.has_dense_pooler or find_family(family).has_pooler)  # one without weights
    backbone = make_backbone(directory, kind, **overrides, use_pooler=use_pooler)
    import_tensors(backbone, backbone, kind.saved_as, tensors)
    return backbone


def load_pretrainer(
    model_class: type,
    path,
    may_be_new: bool = True,
    bag_of_words: float = 0.0,
    options: Mapping[str, Any] | None = None,
    **overrides,
) -> tuple[Any, tuple[str, ...]]:
    """Load a model for continued pre-training; also return the names of its newly initialised layers.

    Args:
        model_class: a class of `models.pretraining`.
        may_be_new: initialise new heads if the directory has none.
        bag_of_words: if above 0, the model is wrapped in a `BagOfWordsPretrainer` with this weight of the extra loss.
        options: further arguments of the model.
        overrides: as for `load_backbone`; so are the errors raised.
    """
    saved = find_saved_as(model_class)
    check_overrides(overrides)
    directory = read_directory(path)
    config, tensors, _ = directory.opened
    shared = {name: value for name, value in overrides.items() if name != "name"}
    backbone = make_backbone(directory, **shared, use_pooler=saved.use_pooler)
    named = {name: value for name, value in overrides.items() if name == "name"}
    if saved.head.keys() >= MASKED_LM_HEAD.keys() and config.get(TIED_FIELD) is False:
        named["tie_weights"] = False
    model = model_class(backbone, **named, **(options or {}))
    model = BagOfWordsPretrainer(model, bag_of_words) if bag_of_words else model
    stored = model.saved_as
    own_bias = f"{find_table(backbone.family).name_heads(MASKED_LM_TABLE, stored.architecture)['mlm']}.bias"
    if is_untied(stored) and own_bias not in tensors:  # `transformers` 4 has one bias for an untied head, and 5 has two
        stored = replace(stored, head=stored.head | {"mlm": MASKED_LM_HEAD["mlm"]})
    published = model.find_published()
    new_layers = list_missing(published, stored, tensors) if may_be_new else ()
    import_tensors(published, backbone, stored, tensors, new_layers)
    known = {id(weight) for weight in published.weights}
    unpublished = {weight.path.partition("/")[0]: None for weight in model.weights if id(weight) not in known}
    return model, (*new_layers, *unpublished)


def _describe_head(model, saved: SavedAs, labels) -> dict[str, Any]:
    """Return the fields of `config.json` that describe the head."""
    if not saved.head.keys() >= CLASSIFIER_HEAD.keys():
        return {}
    fields: dict[str, Any] = {find_table(model.backbone.family).classifier_dropout: model.dropout_rate}
    if saved.problem_type is not None:
        fields["problem_type"] = saved.problem_type
    if set(TEXT_POOLING) <= set(saved.options) and model.pooling != CLS:
        fields[POOLING_FIELD] = model.pooling
    if saved.problem_type == "regression":
        return fields | make_label_fields(number_labels(1))
    if not set(CLASSES) <= set(saved.options):
        return fields
    labels = labels or model.labels or number_labels(model.num_classes)
    if len(labels) != model.num_classes:
        raise ValueError(
            f"`labels` must name every class. Received: {len(labels)} labels, num_classes={model.num_classes}."
        )
    return fields | make_label_fields(labels)

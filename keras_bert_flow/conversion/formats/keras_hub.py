"""Model format: presets of KerasHub, the successor of keras-nlp.

Their settings, objects and tokenizers are in `keras_hub_settings`; here is which class of KerasHub computes a model,
and where its weights are.
"""

import tempfile
from collections.abc import Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_bert_flow.console.terminal import abridge
from keras_bert_flow.conversion.codecs.keras_weights import KerasWeights, open_weights, write_weights
from keras_bert_flow.conversion.codecs.safetensors_file import find_dtype, open_floats, write_tensors
from keras_bert_flow.conversion.convert import GELU_NAMES
from keras_bert_flow.conversion.directory import check_memory
from keras_bert_flow.conversion.directory_files import POOLING_FIELD, read_json, read_shape, write_json
from keras_bert_flow.conversion.formats.format import Checkpoint, Format, Maker, Tensors
from keras_bert_flow.conversion.formats.huggingface import copy_files
from keras_bert_flow.conversion.formats.keras_hub_settings import (
    ARCHITECTURES,
    BACKBONE,
    CONFIG,
    METADATA,
    PREPROCESSORS,
    TASK,
    TRANSFORMERS,
    HubModel,
    read_model,
    read_tokenizer,
    serialise,
    write_tokenizer,
)
from keras_bert_flow.conversion.sentence_files import (
    MODULES,
    read_max_tokens,
    read_sentence_files,
    write_sentence_files,
)
from keras_bert_flow.conversion.tables.keras_hub import (
    CLASSIFIER,
    EMBEDDER,
    HEAD_EPSILON,
    HUB_FAMILIES,
    MASKED_LM,
    MODEL_WEIGHTS,
    TASK_WEIGHTS,
    HubFamily,
    Place,
    list_places,
)
from keras_bert_flow.conversion.tables.table import FamilyTable, find_table_of
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import find_family
from keras_bert_flow.models.saved_as import CLS
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
LEARNING_RATE = 5e-5
SEGMENTS = "embeddings/segment_embedding"
# File of tensors that KerasHub lacks: for RoBERTa, the positions before the first token, the segment, the pooler.
ASIDE = "transformers.safetensors"
FOLDED = "folded"  # the position embeddings as written for KerasHub; if the preset's differ, it has been trained since


class Fit(NamedTuple):
    """How a model is stored in a preset.

    Attributes:
        task: class with the head, one of `HubFamily.heads`; None without a head.
        num_classes: number of classes of a classifier.
        places: location of every tensor that KerasHub has.
        absent: tensors of a pooler that the model lacks.
        aside: tensors of the model that KerasHub lacks and does not need: see `ASIDE`.
    """

    hub: HubFamily
    table: FamilyTable
    shape: EncoderShape
    task: str | None
    num_classes: int
    places: dict[str, Place]
    absent: tuple[str, ...]
    aside: tuple[str, ...]


class KerasHub(Format):
    """KerasHub presets."""

    title = "KerasHub"
    weights = (MODEL_WEIGHTS, SHARDED)
    dtypes = ("float32", "bfloat16", "float16")

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
        with tempfile.TemporaryDirectory() as place:
            source = Path(place)
            copy_files({**checkpoint.tokenizer, **checkpoint.companions}, source)
            tokenizer = write_tokenizer(found.hub, source, folder)
            pooling = read_sentence_files(source) if found.task == EMBEDDER else {}
            task = read_json(source / TASK) if (source / TASK).is_file() else {}
            settings = read_json(source / SETTINGS) if (source / SETTINGS).is_file() else {}
            lengths = (read_max_tokens(source), task.get("sequence_length"), settings.get("model_max_length"))
        sizes = {theirs: getattr(found.shape, ours) for ours, theirs in found.hub.settings.items()}
        backbone = serialise(found.hub, BACKBONE, sizes | dict(found.hub.options), dtype)
        objects = {CONFIG: backbone, FAST_TOKENIZER: tokenizer}
        if found.task:
            preprocessor = None
            if tokenizer is not None:
                known = [length for length in lengths if type(length) is int and length > 2]
                fields: dict[str, Any] = {"tokenizer": tokenizer, "config_file": PREPROCESSOR}
                fields |= {"sequence_length": min([found.shape.max_positions, *known]), "truncate": "round_robin"}
                fields |= MASKING if found.task == MASKED_LM else {}
                preprocessor = serialise(found.hub, PREPROCESSORS[found.task], fields)
            options = _describe_task(found, checkpoint.config, pooling)
            fields = {"backbone": backbone, "preprocessor": preprocessor, **options}
            objects |= {PREPROCESSOR: preprocessor, TASK: serialise(found.hub, found.task, fields)}
        for name, content in objects.items():
            if content is not None:
                write_json(folder / name, content)
        parameters, remarks = write_model_weights(found, checkpoint, folder, dtype)
        about = {
            "keras_version": version("keras"),
            "keras_hub_version": LAYOUT,
            "parameter_count": parameters,
            "tasks": sorted(found.hub.heads),
            TRANSFORMERS: dict(checkpoint.config),
        }
        write_json(folder / METADATA, about)
        own = _make_sentence_files(1, 1, pooling="mean", normalize=True) if found.task == EMBEDDER else {}
        left = [name for name in checkpoint.companions if name not in own]
        further = [f"{', '.join(left)} left out"] if left else []
        if checkpoint.tokenizer and tokenizer is None:
            further.append(f"tokenizer left out, as that of KerasHub's {found.hub.prefix} is {found.hub.tokenizer}")
        return (*remarks, *further)


def _make_sentence_files(hidden_dim: int, max_tokens: int, **pooling: Any) -> dict[str, bytes]:
    """Return the files for `sentence_transformers`; none without a pooling."""
    if not pooling:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        write_sentence_files(Path(folder), hidden_dim, max_tokens=max_tokens, **pooling)
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def _describe_task(found: Fit, config: Mapping[str, Any], pooling: Mapping[str, Any]) -> dict[str, Any]:
    if found.task == EMBEDDER:
        return {"pooling_mode": pooling["pooling"], "normalize": pooling["normalize"]}
    if found.task != CLASSIFIER:
        return {}
    rate = config.get(found.table.classifier_dropout)
    fields = {"num_classes": found.num_classes, "activation": "linear"}
    fields |= {"dropout": found.shape.dropout_rate if rate is None else rate}
    return fields | ({} if found.hub.has_pooler else {"hidden_dim": found.shape.hidden_dim})


# Find the KerasHub class that computes a model, if there is one.


def fit(checkpoint: Checkpoint) -> Fit:
    """Find the KerasHub class for a model.

    Raises:
        ValueError: there is none, or it computes something else, such as another GELU.
    """
    config = dict(checkpoint.config)
    table, shape = find_table_of(config, CONFIG), read_shape(config, CONFIG)
    if table.family not in HUB_FAMILIES:
        raise ValueError(
            f"A model for KerasHub must be of one of {', '.join(HUB_FAMILIES)}. Received: {table.family}. No class of "
            "KerasHub holds it."
        )
    hub = HUB_FAMILIES[table.family]
    given = (config.get("architectures") or [f"{table.class_prefix}Model"])[0]
    architecture = given.removeprefix(table.class_prefix)
    task = _find_task(architecture, checkpoint, hub, given)
    _check_shape(hub, shape, config)
    _check_arithmetic(hub, shape, task)
    kernel = f"{table.name_heads({'classifier': 'classifier'}, architecture)['classifier']}.weight"
    num_classes = (*checkpoint.tensors.shapes.get(kernel, ()), 0)[0]
    places = list_places(table, shape, architecture, task, num_classes)
    return Fit(hub, table, shape, task, num_classes, places, *_compare(checkpoint, hub, table, task, places))


def _find_task(architecture: str, checkpoint: Checkpoint, hub: HubFamily, given: str) -> str | None:
    tasks = [task for task, name in ARCHITECTURES.items() if name == architecture]
    embeds = EMBEDDER in hub.heads and MODULES in checkpoint.companions
    tasks = [EMBEDDER] if tasks and tasks[0] is None and embeds else tasks
    if not tasks or tasks[0] not in (None, *hub.heads):
        classes = ", ".join(f"{hub.prefix}{task}" for task in ("Backbone", *hub.heads))
        part = "MaskedLM" if architecture == "ForPreTraining" and MASKED_LM in hub.heads else "Backbone"
        raise ValueError(
            f"KerasHub must have a class for the model. Received: {given}; it has {classes}. Take a part: "
            f"kbf.{part}.from_preset(FROM).save_to_preset(PART)."
        )
    return tasks[0]


def _check_shape(hub: HubFamily, shape: EncoderShape, config: Mapping[str, Any]) -> None:
    groups, pooling = getattr(shape, "num_groups", 1), config.get(POOLING_FIELD)
    rules = (
        (pooling in (None, CLS), "predict from the first token", f"{POOLING_FIELD}={pooling}"),
        (
            "num_segments" in hub.settings or shape.num_segments < 2,
            "have no segments",
            f"num_segments={shape.num_segments}",
        ),
        (
            shape.num_layers % groups == 0,
            "have groups of as many layers each",
            f"num_groups={groups}, num_layers={shape.num_layers}",
        ),
        (not shape.shared_parts, "share whole layers", f"sharing={getattr(shape, 'sharing', None)}"),
        (
            {shape.hidden_act, shape.mlm_hidden_act} <= {*GELU_NAMES, None},
            "have GELUs",
            f"hidden_act={shape.hidden_act}, mlm_hidden_act={shape.mlm_hidden_act}",
        ),
        (
            shape.layer_norm_epsilon == hub.layer_norm_epsilon,
            f"have the epsilon {hub.layer_norm_epsilon} in its encoder",
            f"layer_norm_epsilon={shape.layer_norm_epsilon}",
        ),
    )
    for holds, rule, received in rules:
        if not holds:
            raise ValueError(
                f"A model for KerasHub's {hub.prefix} must {rule}. Received: {received}. No class of KerasHub holds it."
            )


def _check_arithmetic(hub: HubFamily, shape: EncoderShape, task: str | None) -> None:
    """Raise ValueError unless KerasHub's class has the GELUs and the epsilon of the model."""
    there: dict[str, Any] = {"gelu": GELU_NAMES[hub.hidden_act]}
    here: dict[str, Any] = {"gelu": GELU_NAMES[shape.hidden_act]}
    if task == MASKED_LM:
        there |= {"mlm-gelu": GELU_NAMES[hub.mlm_hidden_act], "mlm-epsilon": HEAD_EPSILON}
        epsilon = shape.mlm_layer_norm_epsilon
        here |= {
            "mlm-gelu": GELU_NAMES[shape.mlm_hidden_act or shape.hidden_act],
            "mlm-epsilon": shape.layer_norm_epsilon if epsilon is None else epsilon,
        }
    if there == here:
        return
    changed = {name for name in there if there[name] != here[name]}
    if task == MASKED_LM and "gelu" in changed and shape.mlm_hidden_act is None:
        # The head uses the encoder's GELU unless it has its own.
        changed = changed - {"mlm-gelu"} | ({"mlm-gelu"} if there["mlm-gelu"] != there["gelu"] else set())
    options = " ".join(f"--{name} {value}" for name, value in there.items() if name in changed)
    wanted, received = (", ".join(f"{name} {value}" for name, value in values.items()) for values in (there, here))
    raise ValueError(
        f"A model must compute what KerasHub's {hub.prefix}{task or 'Backbone'} does: {wanted}. Received: "
        f"{received}. Accept other outputs with {options}, in Python arguments of these names."
    )


def _compare(
    checkpoint: Checkpoint, hub: HubFamily, table: FamilyTable, task: str | None, places: dict[str, Place]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return `Fit.absent` and `Fit.aside`; ValueError unless all other tensors and places correspond."""
    shapes = checkpoint.tensors.shapes
    pooler = [f"{tensors.name}.{part}" for tensors in table.pooler.values() for part in ("weight", "bias")]
    beside = [f"{table.embeddings[SEGMENTS].name}.weight", *pooler] if hub.folds_positions else []
    untrained = pooler if hub.has_pooler and not find_family(table.family).has_pooler else []
    title = f"{hub.prefix}{task or 'Backbone'}"
    for name in shapes:
        if name not in places and name not in beside or name in untrained:
            raise ValueError(
                f"Each tensor must have a place in KerasHub's {title}. Received: {abridge(name)}, which has none. "
                "Save the model without it."
            )
    for name, place in places.items():
        if name in shapes and shapes[name] != place.shape:
            raise ValueError(
                f"{checkpoint.tensors.path}: `{name}` must have the shape {place.shape}, by config.json. Received: "
                f"{shapes[name]}. Do the two files belong together?"
            )
    absent = tuple(name for name in places if name not in shapes)
    if set(absent) - set(pooler) or absent and task == CLASSIFIER:
        raise ValueError(f"{checkpoint.tensors.path}: there is no tensor `{absent[0]}`. Is it a {title}?")
    return absent, tuple(name for name in shapes if name in beside)


# Write and read the weights of a preset.


def write_model_weights(fit: Fit, checkpoint: Checkpoint, folder: Path, dtype: str) -> tuple[int, tuple[str, ...]]:
    """Write the weights of a preset, and return the number of parameters of its backbone, and remarks."""
    kind = find_dtype(dtype)
    variables: dict[str, dict[str, np.ndarray]] = {MODEL_WEIGHTS: {}, TASK_WEIGHTS: {}}
    for name, place in fit.places.items():
        if name in fit.absent:
            value = np.zeros(place.shape_there, kind)
        elif fit.hub.folds_positions and name == _name_rows(fit.table)[0]:
            value = _put_aside(fit, checkpoint, folder, dtype)
        else:
            value = checkpoint.tensors[name]
            value = (value.T if place.is_kernel else value).reshape(place.shape_there).astype(kind)
        variables[place.file][place.name] = value
    write_weights(folder / MODEL_WEIGHTS, variables[MODEL_WEIGHTS])
    if variables[TASK_WEIGHTS]:
        # Keras warns if a compiled task finds no optimizer in the file.
        rate = fit.hub.classifier_rate if fit.task == CLASSIFIER else LEARNING_RATE
        optimizer = {"optimizer/0": np.array(0, np.int32), "optimizer/1": np.array(rate, np.float32)}
        write_weights(folder / TASK_WEIGHTS, variables[TASK_WEIGHTS] | optimizer)
    notes = {
        "filled with zeros, as the model has none": fit.absent,
        f"put into {ASIDE}, which KerasHub does not read": fit.aside,
    }
    remarks = [f"{', '.join(names)} {note}" for note, names in notes.items() if names]
    return sum(value.size for value in variables[MODEL_WEIGHTS].values()), tuple(remarks)


def read_model_weights(model: HubModel, folder: Path) -> tuple[Tensors, tuple[str, ...]]:
    """Open the weights of a preset, and return them with remarks.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or its variables do not match the settings.
    """
    hub = HUB_FAMILIES[model.table.family]
    weights = {MODEL_WEIGHTS: open_weights(folder / MODEL_WEIGHTS)}
    if model.shape.num_blocks > len(weights[MODEL_WEIGHTS]):  # a damaged file may claim a billion layers
        raise ValueError(
            f"{folder / MODEL_WEIGHTS}: must have the layers that config.json says. Received: "
            f"{model.shape.num_blocks:,} layers, {len(weights[MODEL_WEIGHTS]):,} variables. Copy it again."
        )
    places = list_places(model.table, model.shape, model.architecture, model.task, model.num_classes)
    if any(place.file == TASK_WEIGHTS for place in places.values()):
        weights[TASK_WEIGHTS] = open_weights(folder / TASK_WEIGHTS)
    _check_variables(places, weights)
    makers: dict[str, Maker] = {name: partial(_restore, weights[place.file], place) for name, place in places.items()}
    remarks = []
    pooler = [f"{tensors.name}.{part}" for tensors in model.table.pooler.values() for part in ("weight", "bias")]
    if hub.has_pooler and model.task != CLASSIFIER:
        is_empty = not any(makers[name]().any() for name in pooler)
        if is_empty or not find_family(model.table.family).has_pooler:
            remarks.append(f"{', '.join(pooler)} left out, {'all zeros' if is_empty else 'new in each preset'}")
            makers = {name: maker for name, maker in makers.items() if name not in pooler}
    shapes = {name: places[name].shape for name in makers}
    if hub.folds_positions:
        rows = partial(weights[MODEL_WEIGHTS].__getitem__, places[_name_rows(model.table)[0]].name)
        found, shapes_aside = _take_aside(model, folder, rows)
        makers, shapes = makers | found, shapes | shapes_aside
    tensors = Tensors(makers, shapes, folder / MODEL_WEIGHTS)
    check_memory(tensors)
    return tensors, tuple(remarks)


def _check_variables(places: Mapping[str, Place], weights: Mapping[str, KerasWeights]) -> None:
    for place in places.values():
        found = weights[place.file]
        if place.name not in found:
            raise ValueError(
                f"{found.path}: there is no variable `{place.name}`. Is it a model of the sizes that config.json says, "
                "and of floating-point numbers?"
            )
        if found.shapes[place.name] != place.shape_there:
            raise ValueError(
                f"{found.path}: `{place.name}` must have the shape {place.shape_there}, by config.json. Received: "
                f"{found.shapes[place.name]}. Do the two files belong together?"
            )
    for file, found in weights.items():
        known = {place.name for place in places.values() if place.file == file}
        if extra := found.keys() - known:
            raise ValueError(
                f"{found.path}: must have the variables of the class that its JSON names. Received: "
                f"{abridge(ascii(min(extra)))}, which that class does not have. Do the files belong together?"
            )


def _restore(weights: KerasWeights, place: Place) -> np.ndarray:
    value = weights[place.name]
    return value.reshape(place.shape[::-1]).T if place.is_kernel else value.reshape(place.shape)


def _name_rows(table: FamilyTable) -> tuple[str, str]:
    """Return the tensor names of the position and segment embeddings."""
    names = (table.embeddings[layer].name for layer in ("embeddings/position_embedding", SEGMENTS))
    positions, segments = (f"{name}.weight" for name in names)
    return positions, segments


def _put_aside(fit: Fit, checkpoint: Checkpoint, folder: Path, dtype: str) -> np.ndarray:
    """Write the tensors that KerasHub's RoBERTa lacks, and return its position embeddings, with the segment added."""
    positions, segments = _name_rows(fit.table)
    tensors = {name: checkpoint.tensors[name].astype(find_dtype(dtype)) for name in (positions, *fit.aside)}
    rows = tensors[positions][fit.shape.position_offset :].astype(np.float32)
    segment = tensors[segments][0].astype(np.float32) if segments in tensors else np.float32(0)
    folded = (rows + segment).astype(find_dtype(dtype))
    write_tensors(folder / ASIDE, tensors | {FOLDED: folded}, dtype)
    return folded


def _take_aside(model: HubModel, folder: Path, read_rows: Maker) -> tuple[dict[str, Maker], dict[str, tuple]]:
    """Return the tensors of `ASIDE`, or substitutes if there are none or the preset has been trained since."""
    positions, segments = _name_rows(model.table)
    offset, shape = model.shape.position_offset, model.shape
    if model.is_ours and (folder / ASIDE).is_file():
        stored = open_floats(folder / ASIDE)
        known = {positions: (shape.num_position_rows, shape.hidden_dim), segments: (1, shape.hidden_dim)}
        fits = all(stored.shapes.get(name) == size for name, size in known.items()) and FOLDED in stored
        if fits and np.array_equal(stored[FOLDED].astype(np.float32), read_rows().astype(np.float32)):
            names = [name for name in stored if name != FOLDED]
            return {name: partial(stored.__getitem__, name) for name in names}, {
                name: stored.shapes[name] for name in names
            }

    before = np.zeros((offset, shape.hidden_dim), np.float32)
    return {
        positions: lambda: np.concatenate([before, read_rows().astype(np.float32)]),
        segments: lambda: np.zeros((1, shape.hidden_dim), np.float32),
    }, {positions: (shape.num_position_rows, shape.hidden_dim), segments: (1, shape.hidden_dim)}

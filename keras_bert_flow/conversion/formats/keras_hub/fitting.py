"""Find the KerasHub class that computes a model, if there is one."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from keras_bert_flow.conversion.arithmetic import GELU_NAMES
from keras_bert_flow.conversion.checkpoint import Checkpoint
from keras_bert_flow.conversion.formats.keras_hub.settings import ARCHITECTURES, CONFIG
from keras_bert_flow.conversion.hf_config import POOLING_FIELD, read_shape
from keras_bert_flow.conversion.sentence_files import MODULES
from keras_bert_flow.conversion.tables.keras_hub import (
    CLASSIFIER,
    EMBEDDER,
    HEAD_EPSILON,
    HUB_FAMILIES,
    MASKED_LM,
    HubFamily,
    Place,
    list_places,
)
from keras_bert_flow.conversion.tables.registry import find_table_of
from keras_bert_flow.conversion.tables.table import FamilyTable
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.registry import find_family
from keras_bert_flow.models.poolings import CLS
from keras_bert_flow.terminal import abridge

SEGMENTS = "embeddings/segment_embedding"


class Fit(NamedTuple):
    """How a model is stored in a preset.

    Attributes:
        task: class with the head, one of `HubFamily.heads`; None without a head.
        num_classes: number of classes of a classifier.
        places: location of every tensor that KerasHub has.
        absent: tensors of a pooler that the model lacks.
        aside: tensors of the model that KerasHub lacks and does not need: see `weights.ASIDE`.
    """

    hub: HubFamily
    table: FamilyTable
    shape: EncoderShape
    task: str | None
    num_classes: int
    places: dict[str, Place]
    absent: tuple[str, ...]
    aside: tuple[str, ...]


def fit(checkpoint: Checkpoint) -> Fit:
    """Find the KerasHub class for a model.

    Raises:
        ValueError: there is none, or it computes something else, such as another GELU.
    """
    config = dict(checkpoint.config)
    table, shape = find_table_of(config, CONFIG), read_shape(config, CONFIG)
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
    raise ValueError(
        f"A model must compute what KerasHub's {hub.prefix}{task or 'Backbone'} does: {_list(there)}. Received: "
        f"{_list(here)}. Accept other outputs with {options}, in Python arguments of these names."
    )


def _list(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


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

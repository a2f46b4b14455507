"""Export a model's weights to Hugging Face's tensors, import them, and build models from them."""

import logging
from collections.abc import Collection, Mapping, Sequence

import numpy as np
from keras import ops

from keras_bert_flow.backends.values import read_variable
from keras_bert_flow.conversion.adapters import FIRST, PREFIX, SECOND, list_unread, name_some
from keras_bert_flow.conversion.codecs.safetensors_file import TensorMapping
from keras_bert_flow.conversion.directory import ModelDirectory
from keras_bert_flow.conversion.tables.table import FamilyTable, find_table, split_fused
from keras_bert_flow.layers.attention import PARTS
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.backbone import Backbone
from keras_bert_flow.models.families.family import BLOCK
from keras_bert_flow.models.saved_as import MASKED_LM_HEAD, MASKED_LM_TABLE, SavedAs
from keras_bert_flow.models.trained_weights import is_lora, list_lora_layers, list_quantized, read_merged


def export_tensors(model, backbone: Backbone, saved: SavedAs) -> dict[str, np.ndarray]:
    """Return the tensors of a model, with LoRA merged.

    Raises:
        ValueError: a weight is NaN or infinite, or a layer is quantised.
    """
    if quantized := list_quantized(model):
        raise ValueError(
            f"A model directory must hold the weights of training. Received: {quantized[0].path}, quantised to "
            f"{quantized[0].quantization_mode}. Save the model before `quantize`, or use `model.save('model.keras')`."
        )
    table = find_table(backbone.family)
    names = _name_layers(table, backbone, saved)
    tensors: dict[str, np.ndarray] = {}
    for variable, value in read_merged(model):
        value = _check_finite(variable, value)
        parts = tensor_names(variable.path, names)
        order = table.find_parts(variable.path.rpartition("/")[0], backbone.shape)
        tensors |= export_variable(value, parts, order, is_transposed(variable.path, parts, table))
    prefix = table.prefix if saved.head else ""
    for source, copy in table.list_copies(backbone.shape):
        for part in ("weight", "bias"):
            tensors[f"{prefix}{copy}.{part}"] = tensors[f"{prefix}{source}.{part}"]
    if is_untied(saved):  # Hugging Face's files also hold the bias of a tied head, unused
        tied = table.name_heads(MASKED_LM_HEAD, saved.architecture)["mlm"]
        tensors[f"{tied}.bias"] = tensors[f"{names['mlm']}.bias"]
    return tensors


def is_untied(saved: SavedAs) -> bool:
    """Return whether a model has an untied masked-LM head, with a table of its own."""
    return saved.head.keys() >= MASKED_LM_TABLE.keys()


def export_adapter(model, backbone: Backbone, saved: SavedAs) -> tuple[dict[str, np.ndarray], int, float]:
    """Return the tensors of an adapter, and the rank and alpha of its LoRA.

    The tensors are the LoRA matrices, and in full whatever else is trained, such as a pooler and a head.

    Raises:
        ValueError: the model has no LoRA, or LoRA that `Backbone.enable_lora` did not add, or a weight is NaN or
            infinite.
    """
    layers, table = list_lora_layers(model), find_table(backbone.family)
    known = _name_layers(table, backbone, saved)
    kinds = {(layer.lora_rank, layer.lora_alpha) for layer in layers}
    if len(kinds) != 1 or not all(layer.path.startswith(BLOCK) for layer in layers):
        raise ValueError(
            f"An adapter must be of LoRA that `Backbone.enable_lora` has made. Received: {len(layers)} layers with "
            f"LoRA, of {len(kinds)} ranks and alphas. Save the whole model: leave out adapter_of."
        )
    tensors: dict[str, np.ndarray] = {}
    for layer in layers:
        names = split_fused(known[layer.path])
        if len(names) > 1:
            pairs = {names[PARTS.index(part)]: pair for part, pair in layer.lora_matrices.items()}
        else:
            order = table.find_parts(layer.path, backbone.shape)
            spread = reorder(ops.convert_to_numpy(layer.lora_kernel_b), *order)
            pairs = {names[0]: (layer.lora_kernel_a, spread)}
        for name, pair in pairs.items():
            for end, matrix in zip((FIRST, SECOND), pair, strict=True):
                tensors[name + end] = _check_finite(layer, ops.convert_to_numpy(matrix)).T
    prefix = table.prefix if saved.head else ""
    for source, copy in table.list_copies(backbone.shape):
        for end in (FIRST, SECOND):
            if prefix + source + end in tensors:
                tensors[prefix + copy + end] = tensors[prefix + source + end]
    for variable in model.trainable_variables:
        if not is_lora(variable):
            names, value = tensor_names(variable.path, known), _check_finite(variable, read_variable(variable))
            order = table.find_parts(variable.path.rpartition("/")[0], backbone.shape)
            tensors |= export_variable(value, names, order, is_transposed(variable.path, names, table))
    ((rank, alpha),) = kinds
    return {PREFIX + name: value for name, value in tensors.items()}, rank, alpha


def _check_finite(variable, value: np.ndarray) -> np.ndarray:
    """Return the value of a variable, or of one of a layer, as float32; ValueError if it is NaN or infinite."""
    value = value.astype("float32")
    if not np.isfinite(value).all():
        raise ValueError(f"Weights must be numbers. Received: {variable.path} with NaN or infinity. Do not save it.")
    return value


def _name_layers(table: FamilyTable, backbone: Backbone, saved: SavedAs) -> dict[str, str]:
    """Map our layers and variables to Hugging Face's names: an encoder without a head has no prefix."""
    names = table.name_encoder(backbone.shape)
    if not saved.head:
        return names
    return {ours: table.prefix + theirs for ours, theirs in names.items()} | table.name_heads(
        saved.head, saved.architecture
    )


def import_tensors(
    model,
    backbone: Backbone,
    saved: SavedAs,
    tensors: TensorMapping,
    new_layers: Collection[str] = (),
) -> None:
    """Assign every weight of a model from tensors, except those of new layers.

    Raises:
        ValueError: a tensor is missing or has another shape.
    """
    table = find_table(backbone.family)
    known = table.name_encoder(backbone.shape) | table.name_heads(saved.head, saved.architecture)
    for variable in model.weights:
        if variable.path.rpartition("/")[0] in new_layers:
            continue
        names = tensor_names(variable.path, known)
        is_turned = is_transposed(variable.path, names, table)
        expected = (*variable.shape[:-1], variable.shape[-1] // len(names))
        expected = expected[::-1] if is_turned else expected
        for name in names:
            if name not in tensors:
                raise ValueError(f"{tensors.path}: there is no tensor `{name}`. Is it a {type(model).__name__}?")
            if tensors.shapes[name] != expected:
                raise ValueError(
                    f"{tensors.path}: `{name}` must have the shape {expected}, by config.json. "
                    f"Received: {tensors.shapes[name]}. Do the two files belong together?"
                )
        arrays = [tensors[name].astype(np.float32, copy=False) for name in names]
        value = np.concatenate([array.T if is_turned else array for array in arrays], axis=-1)
        groups, parts = table.find_parts(variable.path.rpartition("/")[0], backbone.shape)
        variable.assign(reorder(value, parts, groups))


def has_pooler(shape: EncoderShape, table: FamilyTable, saved: SavedAs, tensors: TensorMapping) -> bool:
    """Return whether a directory holds the pooler of a kind of model; a masked LM's directory does not."""
    return not shape.has_dense_pooler or f"{table.name_pooler(saved.architecture)}.weight" in tensors


def list_missing(model, saved: SavedAs, tensors: TensorMapping) -> tuple[str, ...]:
    """Return the pooler and head layers that have no tensor, in the order of the model."""
    table = find_table(model.backbone.family)
    names = {ours: found.name for ours, found in table.pooler.items()}
    names |= table.name_heads(saved.head, saved.architecture)
    missing: dict[str, None] = {}  # an ordered set
    for variable in model.weights:
        layer = variable.path.rpartition("/")[0]
        if layer in names and not tensors.keys() & tensor_names(variable.path, names):
            missing[layer] = None
    return tuple(missing)


# Translate between our variables and Hugging Face's tensors: names, orientation, fused layers.
#
# A dense kernel is (inputs, outputs) here and (outputs, inputs) there. Query, key and value are one layer here, with
# outputs ordered (heads, 3, head_dim), and so are the two halves of a gated feed-forward. There they are one after
# another, (3, heads, head_dim), in one tensor or in one each.


def tensor_names(path: str, names: Mapping[str, str]) -> list[str]:
    """Return the names of the Hugging Face tensors for the variable at `path`: three for a fused one, else one.

    Args:
        names: our layers and variables → Hugging Face's, without `.weight` and `.bias`.
    """
    layer, _, variable = path.rpartition("/")
    suffix = "bias" if variable in ("bias", "beta") else "weight"
    return [f"{name}.{suffix}" for name in split_fused(names[path] if path in names else names[layer])]


def is_transposed(path: str, names: Sequence[str], table: FamilyTable) -> bool:
    """Return whether the variable at `path` is the transpose of the tensors that `tensor_names` gives."""
    return path.endswith("/kernel") and names[0].removesuffix(".weight") not in table.untransposed


def reorder(value: np.ndarray, first: int, second: int) -> np.ndarray:
    """Reorder the last axis from (first, second, width) to (second, first, width)."""
    if 1 in (first, second):
        return value
    split = value.reshape(*value.shape[:-1], first, second, -1)
    return split.swapaxes(-3, -2).reshape(value.shape)


def export_variable(
    value: np.ndarray, names: Sequence[str], order: tuple[int, int], is_turned: bool
) -> dict[str, np.ndarray]:
    """Convert one of our variables to Hugging Face tensors, which are its transpose if `is_turned`.

    Args:
        order: what `FamilyTable.find_parts` returns for its layer.
    """
    arrays = np.split(reorder(value, *order), len(names), axis=-1)
    return {name: array.T if is_turned else array for name, array in zip(names, arrays, strict=True)}


# Read the parts that every model directory has: the configuration, the tensors and the encoder.

_logger = logging.getLogger(__name__)

OVERRIDES = ("dropout_rate", "attention_dropout_rate", "dtype", "name")


def read_directory(model) -> ModelDirectory:
    """Return a model directory, given as such or by its path, whose files are whole and whose tensors are finite.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged or differs from the manifest that lists it, or the tensors do not match
            `config.json`.
    """
    directory = ModelDirectory.of(model)
    directory.verify()
    config, tensors, _ = directory.opened
    tensors.check_finite()
    if unread := list_unread(find_table(config["model_type"]), tensors):
        _logger.warning(
            "%s: %d tensors of no head known here are not read: %s.", directory.folder, len(unread), name_some(unread)
        )
    return directory


def make_backbone(directory: ModelDirectory, kind: type[Backbone] = Backbone, **overrides) -> Backbone:
    """Build the encoder that a directory describes, with newly initialised weights.

    Args:
        kind: the backbone class, which may be restricted to one family.
    Raises:
        ValueError: its settings contradict each other.
    """
    settings = dict(directory.settings)
    rows, pieces = settings["vocabulary_size"], directory.num_pieces
    if pieces < rows:
        settings["num_pieces"] = pieces
        _logger.warning(
            "%s: %d of %d rows of the token embeddings are of no piece of the tokenizer, and are never predicted.",
            directory.folder,
            rows - pieces,
            rows,
        )
    try:
        return kind(**(settings | overrides))
    except ValueError as error:
        raise ValueError(f"{directory.source}: {error}") from None


def check_overrides(overrides: Collection[str], options: tuple[str, ...] = ()) -> None:
    """Raise ValueError unless each override is one that every model takes, or one of `options`."""
    known = (*OVERRIDES, *options)
    unknown = sorted(set(overrides) - set(known))
    if unknown:
        raise ValueError(f"Overrides must be among {', '.join(known)}. Received: {', '.join(unknown)}.")

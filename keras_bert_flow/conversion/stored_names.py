"""Match the tensors that a model directory stores with those of its family, without Keras.

Names in other spellings and tied tensors are resolved as `transformers` 5 does in `PreTrainedModel.tie_weights`. What
is left over is refused or listed, never skipped silently.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_bert_flow.conversion.codecs.safetensors_file import FLOATS, StoredTensors
from keras_bert_flow.conversion.codecs.tensors import TensorMapping
from keras_bert_flow.conversion.hf_config import TIED_FIELD, name_own_kernel
from keras_bert_flow.conversion.tables.table import FamilyTable, find_root
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.registry import find_family
from keras_bert_flow.models.saved_as import HEADS, MASKED_LM_HEAD, MASKED_LM_TABLE, OUTPUT_BIASES
from keras_bert_flow.terminal import abridge

# Buffers that old versions of `transformers` stored with the weights
BUFFERS = {"embeddings.position_ids", "embeddings.token_type_ids"}
SHOWN = 3  # names in a message


@dataclass(frozen=True)
class Resolved:
    """The tensors of a model directory by their current names.

    Attributes:
        tensors: the floating-point tensors, without copies.
        tied: what the tensors say about the masked-LM head; None if nothing.
        remarks: what was renamed or left out, one clause each.
    """

    tensors: StoredTensors
    tied: bool | None
    remarks: tuple[str, ...]


def resolve_names(config: Mapping[str, Any], table: FamilyTable, stored: StoredTensors) -> Resolved:
    """Give tensors their current names, and find tied ones under whichever name they are stored.

    Args:
        stored: all tensors of the directory, of any dtype, by the names in its files.
    Raises:
        ValueError: two tensors get the same name, or a weight is not of floating-point numbers.
    """
    names = {name: table.normalise_name(name) for name in stored}
    remarks = [*_describe_renaming(names, table)]
    here = stored.rename(table.normalise_name)
    numberless = check_dtypes(here, table)
    weights = here.select({name: name for name in here if name not in numberless})
    sources, tied, tied_remarks = _tie(config, table, weights)
    remarks += tied_remarks
    remarks += [f"{name} left out, no weights" for name, new in names.items() if new in numberless]
    weights = weights.select(sources)
    own_kernel = name_own_kernel(config, table)
    return Resolved(weights.squeeze(own_kernel) if own_kernel else weights, tied, tuple(remarks))


def _describe_renaming(names: Mapping[str, str], table: FamilyTable) -> Iterator[str]:
    wrapped = {name: table.unwrap_name(name) for name in names}
    if prefixes := {name.removesuffix(rest) for name, rest in wrapped.items()} - {"", table.prefix}:
        yield f"{', '.join(sorted(prefixes))} left out of the names of tensors"
    if renamed := sum(names[name] != rest for name, rest in wrapped.items()):
        yield f"{renamed} tensors renamed from gamma and beta"


def check_dtypes(tensors: StoredTensors, table: FamilyTable) -> set[str]:
    """Return the tensors that are no weights, such as counters; ValueError if a weight is quantised."""
    others = {name: dtype for name, dtype in tensors.dtypes.items() if dtype not in FLOATS}
    roots, heads = table.list_roots(), list_head_tensors(table)
    for name, dtype in others.items():
        if name not in BUFFERS and (find_root(name) in roots or name in heads):
            raise ValueError(
                f"{tensors.path}: weights must be of floating-point numbers, {', '.join(FLOATS)}. Received: "
                f"`{abridge(name)}` of {dtype}. Save the model in bfloat16 before it is quantised, for example with "
                "`model.dequantize().save_pretrained(NEW)` of transformers."
            )
    return {*others}


def _tie(
    config: Mapping[str, Any], table: FamilyTable, stored: StoredTensors
) -> tuple[dict[str, str], bool | None, list[str]]:
    """Return name → stored name with the masked-LM head resolved, whether the head is tied, and remarks."""
    sources = {name: name for name in stored}
    if config.get(TIED_FIELD) is False:
        return sources, None, []
    embeddings = f"{table.embeddings['token_embedding'].name}.weight"
    head, own = (table.name_heads(names, "")["mlm"] for names in (MASKED_LM_HEAD, MASKED_LM_TABLE))
    rows, own_bias, bias = f"{own}.weight", f"{own}.bias", f"{head}.bias"
    tied, remarks = None, []
    if rows in stored and embeddings not in stored:
        sources |= {embeddings: sources.pop(rows)}
        remarks.append(f"{embeddings} read from {rows}, to which it is tied")
    elif rows in stored and _are_equal(stored, rows, embeddings):
        del sources[rows]
        remarks.append(f"{rows} left out, a copy of {embeddings}")
    elif rows in stored:
        tied = False
        remarks.append(f"{rows} kept, as it differs from {embeddings}: the head is not tied")
    if own_bias != bias and own_bias in stored and tied is None:
        del sources[own_bias]
        if bias in stored and _are_equal(stored, bias, own_bias):
            remarks.append(f"{own_bias} left out, a copy of {bias}")
        else:  # the layer `decoder` computes the logits
            sources[bias] = own_bias
            remarks.append(f"{bias} read from {own_bias}")
    return sources, tied, remarks


def _are_equal(tensors: TensorMapping, one: str, other: str) -> bool:
    return tensors.shapes[one] == tensors.shapes[other] and np.array_equal(tensors[one], tensors[other])


def list_head_tensors(table: FamilyTable) -> set[str]:
    """Return the names of all tensors that the poolers and heads of a family may have."""
    layers = {tensors.name for tensors in table.pooler.values()}
    for architecture in ("", *table.heads):
        layers.add(table.name_pooler(architecture))
        for head in HEADS:
            layers |= {*table.name_heads(head, architecture).values()}
    return {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}


def check_leftovers(shape: EncoderShape, table: FamilyTable, tensors: TensorMapping) -> None:
    """Raise ValueError if the encoder has a tensor that `config.json` does not account for, or a head half a layer.

    Call this after `check_sizes`: a damaged `config.json` may claim a billion layers.
    """
    roots, heads = table.list_roots(), list_head_tensors(table)
    known = {name for name, _ in table.list_sizes(shape)} | heads | BUFFERS
    extra = sorted(name for name in tensors if name not in known and find_root(name) in roots)
    if extra:
        number = re.compile(re.escape(table.block_name).replace(r"\{\}", r"(\d+)"))
        blocks = [int(found[1]) for found in map(number.match, extra) if found]
        field = next(setting.theirs for setting in table.settings if setting.ours == "num_layers")
        is_deeper = bool(blocks) and min(blocks) >= shape.num_blocks == shape.num_layers
        remedy = (
            f"Set {field} to {max(blocks) + 1} if it has so many; `kbf convert --layers` then makes a smaller model."
            if is_deeper
            else "It computes something else than this package does."
        )
        raise ValueError(
            f"{tensors.path}: config.json must describe every tensor of the encoder. Received: {name_some(extra)}, "
            f"which a {find_family(table.family).title} of {shape.num_layers} layers does not have. {remedy}"
        )
    without_kernel = {name for layer in OUTPUT_BIASES for name in _name_everywhere(table, layer)}
    without_bias = {name for layer in MASKED_LM_TABLE.values() for name in _name_everywhere(table, layer)}
    for name in heads & tensors.keys():
        layer, _, part = name.rpartition(".")
        other = f"{layer}.{'bias' if part == 'weight' else 'weight'}"
        if other not in tensors and layer not in (without_bias if part == "weight" else without_kernel):
            raise ValueError(
                f"{tensors.path}: a layer must be whole. Received: `{name}` without `{other}`. Copy or save it again."
            )


def _name_everywhere(table: FamilyTable, layer: str) -> Iterator[str]:
    for architecture in ("", *table.heads):
        yield from table.name_heads({layer: layer}, architecture).values()


def list_unread(table: FamilyTable, tensors: TensorMapping) -> list[str]:
    """Return the tensors of the directory that belong neither to the encoder nor to a head that is known here."""
    known, roots = list_head_tensors(table), table.list_roots()
    return sorted(name for name in tensors if name not in known and find_root(name) not in roots)


def name_some(names: Iterable[str]) -> str:
    """Return the first names of a list, and how many more there are."""
    first = [*names]
    more = len(first) - SHOWN
    return abridge(", ".join(f"`{name}`" for name in first[:SHOWN])) + (f" and {more} more" if more > 0 else "")

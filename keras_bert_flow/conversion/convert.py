"""Convert a model to another format or shape without Keras; the result is read back and compared."""

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_flow.conversion.codecs.safetensors_file import find_dtype
from keras_bert_flow.conversion.directory_files import (
    HF_ACTIVATIONS,
    MLM_ACTIVATION,
    MLM_EPSILON,
    TIED_FIELD,
    describe_vocabulary,
    read_shape,
)
from keras_bert_flow.conversion.formats.format import FORMATS, Checkpoint, Tensors, recognise
from keras_bert_flow.conversion.formats.huggingface import Adapter
from keras_bert_flow.conversion.tables.table import FamilyTable, find_table_of
from keras_bert_flow.files.inputs import hold
from keras_bert_flow.models.saved_as import MASKED_LM_EXTENSION, MASKED_LM_HEAD, MASKED_LM_TABLE, OUTPUT_BIASES
from keras_bert_flow.results.artifacts import publishing
from keras_bert_flow.text.tokenizers.files import encode_fast_tokenizer, read_word_piece
from keras_bert_flow.text.tokenizers.settings import FAST_TOKENIZER
from keras_bert_flow.text.tokenizers.wordpiece import SETTINGS
from keras_bert_flow.text.vocabulary import CONTINUATION, SPECIAL_PIECES, VOCABULARY_FILE

# Change the GELUs or the masked-LM epsilon of a trained model, keeping its weights, without Keras.

CONFIG = "config.json"
GELUS = {"erf": "gelu", "tanh": "gelu_tanh"}  # user-facing name → ours
GELU_NAMES = {ours: name for name, ours in GELUS.items()}


def set_gelu(checkpoint: Checkpoint, gelu: str) -> Checkpoint:
    """Return the model with another GELU in its encoder, and in its masked-LM head unless that has its own.

    Args:
        gelu: `erf`, or `tanh`, which differs from it by at most 5e-4.
    Raises:
        ValueError: `gelu` is neither.
    """
    _check_gelu(gelu, "gelu")
    shape, table = read_shape(dict(checkpoint.config), CONFIG), find_table_of(checkpoint.config, CONFIG)
    before = _name_gelu(shape.hidden_act, "gelu")
    return _change(checkpoint, table.activation, HF_ACTIVATIONS[GELUS[gelu]], "GELU", gelu, before)


def set_mlm_gelu(checkpoint: Checkpoint, gelu: str) -> Checkpoint:
    """Return the model with another GELU in its masked-LM head.

    Raises:
        ValueError: `gelu` is neither `erf` nor `tanh`, or the model has no masked-LM head.
    """
    _check_gelu(gelu, "mlm_gelu")
    _require_head(checkpoint, "mlm_gelu")
    shape = read_shape(dict(checkpoint.config), CONFIG)
    before = _name_gelu(shape.mlm_hidden_act or shape.hidden_act, "mlm_gelu")
    return _change(checkpoint, MLM_ACTIVATION, HF_ACTIVATIONS[GELUS[gelu]], "GELU of the masked LM", gelu, before)


def set_mlm_epsilon(checkpoint: Checkpoint, epsilon: float) -> Checkpoint:
    """Return the model with another layer-norm epsilon in its masked-LM head.

    Raises:
        ValueError: `epsilon` is not above 0 and below 1, or the model has no masked-LM head.
    """
    if not 0 < epsilon < 1:
        raise ValueError(f"`mlm_epsilon` must be above 0 and below 1. Received: {epsilon}. Try 1e-5.")
    _require_head(checkpoint, "mlm_epsilon")
    shape = read_shape(dict(checkpoint.config), CONFIG)
    stored = shape.mlm_layer_norm_epsilon
    before = shape.layer_norm_epsilon if stored is None else stored
    return _change(checkpoint, MLM_EPSILON, epsilon, "epsilon of the masked LM", epsilon, before)


def _change(checkpoint: Checkpoint, field: str, value: Any, title: str, after: Any, before: Any) -> Checkpoint:
    """Return the model with a field of `config.json` changed and a remark added; unchanged if the values are equal."""
    if after == before:
        return checkpoint
    config: Mapping[str, Any] = {**checkpoint.config, field: value}
    return replace(checkpoint, config=config, remarks=(*checkpoint.remarks, f"{title} {after}, of {before}"))


def _check_gelu(gelu: str, name: str) -> None:
    if gelu not in GELUS:
        raise ValueError(f"`{name}` must be one of {', '.join(GELUS)}. Received: {gelu!r}. Use one of these.")


def _name_gelu(hidden_act: str, name: str) -> str:
    if hidden_act not in GELU_NAMES:
        raise ValueError(f"A model must have a GELU to set `{name}`. Received: hidden_act={hidden_act}. Leave it out.")
    return GELU_NAMES[hidden_act]


def _require_head(checkpoint: Checkpoint, name: str) -> None:
    table = find_table_of(checkpoint.config, CONFIG)
    head = table.name_heads(MASKED_LM_HEAD, "ForMaskedLM")["mlm"]
    if f"{head}.bias" not in checkpoint.tensors:
        raise ValueError(f"A model must have a head for masked tokens to set `{name}`. Received: none. Leave it out.")


# Change the shape of a trained model, without Keras: more positions, fewer layers, another vocabulary or head.


def set_positions(checkpoint: Checkpoint, positions: int) -> Checkpoint:
    """Return the model with another number of positions: its position embeddings, if any, are repeated or truncated.

    Later positions of longer texts then reuse position embeddings that the model knows; further training adapts them.

    Args:
        positions: length of the longest text in tokens.
    Raises:
        ValueError: fewer than 8.
    Source: Beltagy et al. 2020 (Longformer), section 5, arXiv:2004.05150.
    """
    if positions < 8:
        raise ValueError(f"A model must have at least 8 positions. Received: {positions}. Ask for more.")
    shape, table = read_shape(dict(checkpoint.config), CONFIG), find_table_of(checkpoint.config, CONFIG)
    offset, before = shape.position_offset, shape.max_positions
    tensors = checkpoint.tensors
    if shape.num_position_rows:
        rows = np.concatenate([np.arange(offset), offset + np.arange(positions) % before])
        name = f"{table.embeddings['embeddings/position_embedding'].name}.weight"
        tensors = _operate(tensors, {name: lambda value: value[rows]}, {name: (len(rows), tensors.shapes[name][1])})
    tokenizer = dict(checkpoint.tokenizer)
    if SETTINGS in tokenizer:
        tokenizer[SETTINGS] = json.dumps(
            checkpoint.read_settings() | {"model_max_length": positions}, indent=2
        ).encode()
    return replace(
        checkpoint,
        config=_set(checkpoint.config, table, max_positions=positions + offset),
        tensors=tensors,
        tokenizer=tokenizer,
        remarks=(*checkpoint.remarks, f"{positions} positions, of {before}"),
    )


def keep_layers(checkpoint: Checkpoint, layers: Sequence[int]) -> Checkpoint:
    """Return the model with only the given layers, numbered from 0, in the order given.

    Raises:
        ValueError: a layer does not exist or is named twice, layers share their weights, or in its new place a layer
            would have another attention pattern, other positions or other norms.
    Source: Fan et al. 2020 (LayerDrop), section 3, arXiv:1909.11556.
    """
    shape, table = read_shape(dict(checkpoint.config), CONFIG), find_table_of(checkpoint.config, CONFIG)
    if shape.num_blocks != shape.num_layers or shape.shared_parts:
        raise ValueError(f"Layers must have weights of their own to be chosen. Received: {table.family}, which shares.")
    if not layers or len({*layers}) < len(layers) or not {*layers} <= {*range(shape.num_layers)}:
        raise ValueError(
            f"Layers must be among 0 to {shape.num_layers - 1}, each once. Received: {', '.join(map(str, layers))}."
        )
    config = _set(checkpoint.config, table, num_layers=len(layers))
    fewer = read_shape(config, CONFIG)
    for place, layer in enumerate(layers):
        kinds, others = (
            (of.find_pattern(number), of.find_positions(number), bool(table.not_in_lowest) and number == 0)
            for of, number in ((fewer, place), (shape, layer))
        )
        if kinds != others:
            raise ValueError(
                "Layers must keep their attention and their norms, which depend on the place of a layer. Received: "
                f"{', '.join(map(str, layers))}, where layer {layer} would become layer {place}. Choose others."
            )
    number = re.compile(re.escape(table.block_name).replace(r"\{\}", r"(\d+)"))
    sources = {}
    for name in checkpoint.tensors:
        found = number.match(name)
        if found and int(found[1]) not in layers:
            continue
        new = table.block_name.format(layers.index(int(found[1]))) + name[found.end() :] if found else name
        sources[new] = name
    return replace(
        checkpoint,
        config=config,
        tensors=Tensors.select(checkpoint.tensors, sources),
        remarks=(*checkpoint.remarks, f"layers {', '.join(map(str, layers))} of {shape.num_layers}"),
    )


def set_tied(checkpoint: Checkpoint, tied: bool) -> Checkpoint:
    """Return the model with its masked-LM head tied to the token embeddings, or untied from them.

    An untied table starts as a copy of the embeddings. Tying replaces the head's own table by the embeddings, to which
    further training adapts the model.

    Raises:
        ValueError: there is no masked-LM head, or it is already tied or untied as requested.
    """
    table, tensors = find_table_of(checkpoint.config, CONFIG), checkpoint.tensors
    head, own = (table.name_heads(names, "")["mlm"] for names in (MASKED_LM_HEAD, MASKED_LM_TABLE))
    if f"{head}.bias" not in tensors:
        raise ValueError("A model must have a masked-LM head to be tied or untied. Received: none. Leave it out.")
    if (checkpoint.config.get(TIED_FIELD) is not False) == tied:
        state = "tied" if tied else "untied"
        raise ValueError(f"A masked-LM head must not be {state} already. Received: one that is. Leave it out.")
    bias = f"{own}.bias" if f"{own}.bias" in tensors else f"{head}.bias"
    sources = {name: name for name in tensors if name not in (f"{own}.weight", f"{own}.bias")} | {f"{head}.bias": bias}
    if not tied:
        sources |= {f"{own}.weight": f"{table.embeddings['token_embedding'].name}.weight", f"{own}.bias": bias}
    return replace(
        checkpoint,
        config={**checkpoint.config, TIED_FIELD: tied},
        tensors=Tensors.select(tensors, sources),
        remarks=(*checkpoint.remarks, f"{own}.weight {'left out, the embeddings take its place' if tied else 'new'}"),
    )


def set_vocabulary(checkpoint: Checkpoint, path: str | Path, cased: bool) -> Checkpoint:
    """Return the model with another vocabulary, for further training; embeddings of common pieces are kept.

    The embedding of a new piece starts as the mean of the old pieces that spell it, or of all old pieces if none do.

    Args:
        path: a vocab.txt.
        cased: whether it keeps case.
    Raises:
        ValueError: the model has no vocab.txt, or the id of [PAD] changes.
    """
    table = find_table_of(checkpoint.config, CONFIG)
    source = checkpoint.tokenizer.get(VOCABULARY_FILE)
    if not isinstance(source, Path):
        raise ValueError(
            "A model must have a vocab.txt to be given another. Received: none. Train it further as it is."
        )
    tokenizer = read_word_piece(path, cased)
    old, pieces = {piece: number for number, piece in enumerate(read_word_piece(source).pieces)}, tokenizer.pieces
    if old[SPECIAL_PIECES[0]] != pieces.index(SPECIAL_PIECES[0]):
        raise ValueError(
            f"{SPECIAL_PIECES[0]} must keep its number. Received: {path}, where it is line "
            f"{pieces.index(SPECIAL_PIECES[0]) + 1}, not {old[SPECIAL_PIECES[0]] + 1}. Move it."
        )
    parts = [[old[piece]] if piece in old else split(piece, old) for piece in pieces]

    def move(value: np.ndarray) -> np.ndarray:
        mean = value[: len(old)].mean(axis=0, dtype=np.float64)  # without rows that no piece has
        # A single row is copied bit for bit; the mean of one row might differ.
        rows = [value[part[0]] if len(part) == 1 else value[part].mean(axis=0) if part else mean for part in parts]
        return np.stack(rows).astype(value.dtype)

    names = [f"{table.embeddings['token_embedding'].name}.weight"]
    layers = table.name_heads({layer: layer for layer in OUTPUT_BIASES}, "").values()
    # `decoder` is the prediction table of an untied head.
    heads = [f"{layer}.{part}{kind}" for layer in layers for part in ("", "decoder.") for kind in ("weight", "bias")]
    names += [name for name in heads if name in checkpoint.tensors]
    changes: dict[str, Callable] = dict.fromkeys(names, move)
    sizes = {name: (len(pieces), *checkpoint.tensors.shapes[name][1:]) for name in names}
    for layer in table.name_heads(MASKED_LM_EXTENSION, "").values():  # a column per piece
        if (name := f"{layer}.weight") in checkpoint.tensors:
            changes[name] = lambda value: np.ascontiguousarray(move(value.T).T)
            sizes[name] = (checkpoint.tensors.shapes[name][0], len(pieces))
    shape = read_shape(dict(checkpoint.config), CONFIG)
    shared = sum(piece in old for piece in pieces)
    return replace(
        checkpoint,
        config=_set(checkpoint.config, table, vocabulary_size=len(pieces)),
        tensors=_operate(checkpoint.tensors, changes, sizes),
        tokenizer={
            VOCABULARY_FILE: Path(path),
            SETTINGS: describe_vocabulary(tokenizer, shape.max_positions),
            FAST_TOKENIZER: encode_fast_tokenizer(tokenizer.vocabulary, tokenizer.cased, tokenizer.rules),
        },
        remarks=(
            *checkpoint.remarks,
            f"{shared:,} pieces kept, {len(pieces) - shared:,} new, {len(old) - shared:,} gone",
        ),
    )


def split(piece: str, known: Mapping[str, int]) -> list[int]:
    """Split a piece greedily into the longest known pieces, and return their ids; empty if that fails."""
    rest, numbers = piece.removeprefix(CONTINUATION), []
    is_inside = piece.startswith(CONTINUATION)
    while rest:
        mark = CONTINUATION if is_inside else ""
        size = next((size for size in range(len(rest), 0, -1) if mark + rest[:size] in known), 0)
        if not size:
            return []
        numbers.append(known[mark + rest[:size]])
        rest, is_inside = rest[size:], True
    return numbers


def _operate(tensors: Tensors, changes: Mapping[str, Callable], sizes: Mapping[str, tuple[int, ...]]) -> Tensors:
    """Return the tensors with some of them changed, to the given shapes."""

    def read(name: str) -> np.ndarray:
        return changes[name](tensors[name]) if name in changes else tensors[name]

    return Tensors({name: partial(read, name) for name in tensors}, {**tensors.shapes, **sizes}, tensors.path)


def _set(config: Mapping[str, Any], table: FamilyTable, **values: int) -> dict[str, Any]:
    """Return `config.json` with new values for some of our settings, in all of its spellings."""
    changes = {setting.theirs: values[setting.ours] for setting in table.settings if setting.ours in values}
    return dict(table.complete_config({**table.normalise_config(config, CONFIG), **changes}))


HUGGING_FACE = "huggingface"


@dataclass(frozen=True)
class Conversion:
    """Summary of a conversion, done or planned.

    Attributes:
        source, target: names of the formats.
        architecture: class of `transformers`.
        tensors: number of tensors.
        parameters: number of parameters.
        remarks: what was changed or left out, one clause each.
    """

    source: str
    target: str
    architecture: str
    tensors: int
    parameters: int
    remarks: tuple[str, ...]


def convert(
    path: str | Path,
    output: str | Path,
    target: str = HUGGING_FACE,
    source: str | None = None,
    dtype: str = "float32",
    cased: bool | None = None,
    dry_run: bool = False,
    positions: int | None = None,
    layers: Sequence[int] | None = None,
    vocabulary: str | Path | None = None,
    tied: bool | None = None,
    gelu: str | None = None,
    mlm_gelu: str | None = None,
    mlm_epsilon: float | None = None,
    base: str | Path | None = None,
) -> Conversion:
    """Convert a model to another format; writes nothing if any part cannot be written.

    Args:
        path: a model folder, or the prefix of a checkpoint.
        output: a folder that does not exist yet.
        target: the format to write, one of `formats.format.FORMATS`.
        source: the format of `path`; by default detected from its files.
        dtype: dtype of the weights written.
        cased: whether the vocabulary keeps case, if the source does not say so.
        dry_run: read and check everything, and write nothing.
        positions, layers, vocabulary, tied: changes of the result's shape, if any; see `surgery`.
        gelu, mlm_gelu, mlm_epsilon: changes of the result's arithmetic, if any; see `arithmetic`.
        base: the base model of an adapter, if it is not the one that the adapter names.
    Raises:
        FileNotFoundError: a file is missing.
        FileExistsError: `output` exists.
        ValueError: a file is damaged or changes meanwhile, or a format is unknown or cannot hold the model.
    """
    path, name = Path(path), source or recognise(Path(path))
    inputs = hold(*([path] if path.exists() else path.parent.glob(f"{path.name}.*")))
    known = FORMATS.find(target)()
    if dtype not in known.dtypes:
        raise ValueError(f"Numbers of {known.title} must be {' or '.join(known.dtypes)}. Received: dtype={dtype}.")
    checkpoint = _read(path, name, cased, base)
    if vocabulary is not None:
        is_cased = checkpoint.keeps_case() if cased is None else cased
        checkpoint = set_vocabulary(checkpoint, vocabulary, is_cased)
    changes: tuple[tuple[Callable[..., Checkpoint], Any], ...] = (
        (keep_layers, layers),
        (set_positions, positions),
        (set_tied, tied),
        (set_gelu, gelu),
        (set_mlm_gelu, mlm_gelu),
        (set_mlm_epsilon, mlm_epsilon),
    )
    for change, value in changes:
        if value is not None:
            checkpoint = change(checkpoint, value)
    known.check(checkpoint)
    remarks = checkpoint.remarks + ((f"numbers rounded to {dtype}",) if dtype != "float32" else ())
    for _ in _walk(checkpoint, dtype):  # checks every number before anything is written
        pass
    if not dry_run:
        with publishing(output) as folder:
            remarks += known.write(checkpoint, folder, dtype)
            _compare(checkpoint, known.read(folder, cased), dtype)
            inputs.check()
    architecture = (checkpoint.config.get("architectures") or ["?"])[0]
    parameters = sum(math.prod(shape) for shape in checkpoint.tensors.shapes.values())
    return Conversion(name, target, architecture, len(checkpoint.tensors), parameters, remarks)


def _read(path: Path, name: str, cased: bool | None, base: str | Path | None) -> Checkpoint:
    """Read a model in a format; an adapter together with its base."""
    source = FORMATS.find(name)()
    if base is None:
        return source.read(path, cased)
    if not isinstance(source, Adapter):
        raise ValueError(f"`base` must go with an adapter. Received: {path}, of the format {name}. Leave it out.")
    return source.read(path, cased, base)


def _walk(checkpoint: Checkpoint, dtype: str) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the tensors rounded to the dtype to write; ValueError if one is not finite in it."""
    kind = find_dtype(dtype)
    for name, value in checkpoint.tensors.items():
        with np.errstate(over="ignore"):
            rounded = value.astype(kind).astype(np.float32)
        if not np.isfinite(rounded).all():
            raise ValueError(f"Weights must be finite in {dtype}. Received: {name}, which is not. Choose another one.")
        yield name, rounded


def _compare(wanted: Checkpoint, found: Checkpoint, dtype: str) -> None:
    """Raise ValueError unless the model that was read back equals the one written."""
    if wanted.tensors.keys() != found.tensors.keys():
        names = sorted(wanted.tensors.keys() ^ found.tensors.keys())
        raise ValueError(f"A model must be read back as it was written. Received: {names[0]} in one of the two alone.")
    for name, value in _walk(wanted, dtype):
        if not np.array_equal(value, found.tensors[name].astype(np.float32)):
            raise ValueError(f"A model must be read back as it was written. Received: other numbers of {name}.")

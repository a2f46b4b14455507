"""Change the shape of a trained model, without Keras: more positions, fewer layers, another vocabulary or head."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_flow.conversion.checkpoint import Checkpoint, Tensors
from keras_bert_flow.conversion.directory_files import describe_vocabulary
from keras_bert_flow.conversion.hf_config import TIED_FIELD, read_shape
from keras_bert_flow.conversion.tables.registry import find_table_of
from keras_bert_flow.conversion.tables.table import FamilyTable
from keras_bert_flow.models.saved_as import MASKED_LM_HEAD, MASKED_LM_TABLE, OUTPUT_BIASES
from keras_bert_flow.text.tokenizers.fast_file import encode_fast_tokenizer
from keras_bert_flow.text.tokenizers.files import read_word_piece
from keras_bert_flow.text.tokenizers.settings import FAST_TOKENIZER
from keras_bert_flow.text.tokenizers.wordpiece import SETTINGS
from keras_bert_flow.text.vocabulary.vocab_file import CONTINUATION, SPECIAL_PIECES, VOCABULARY_FILE

CONFIG = "config.json"


def set_positions(checkpoint: Checkpoint, positions: int) -> Checkpoint:
    """Return the model with another number of positions: its position embeddings are repeated or truncated.

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
    rows = np.concatenate([np.arange(offset), offset + np.arange(positions) % before])
    name = f"{table.embeddings['embeddings/position_embedding'].name}.weight"
    tensors = _change(checkpoint.tensors, {name: lambda value: value[rows]}, {name: len(rows)})
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
        ValueError: a layer does not exist or is named twice, or layers share their weights.
    Source: Fan et al. 2020 (LayerDrop), section 3, arXiv:1909.11556.
    """
    shape, table = read_shape(dict(checkpoint.config), CONFIG), find_table_of(checkpoint.config, CONFIG)
    if shape.num_blocks != shape.num_layers or shape.shared_parts:
        raise ValueError(f"Layers must have weights of their own to be chosen. Received: {table.family}, which shares.")
    if not layers or len({*layers}) < len(layers) or not {*layers} <= {*range(shape.num_layers)}:
        raise ValueError(
            f"Layers must be among 0 to {shape.num_layers - 1}, each once. Received: {', '.join(map(str, layers))}."
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
        config=_set(checkpoint.config, table, num_layers=len(layers)),
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
    shape = read_shape(dict(checkpoint.config), CONFIG)
    shared = sum(piece in old for piece in pieces)
    return replace(
        checkpoint,
        config=_set(checkpoint.config, table, vocabulary_size=len(pieces)),
        tensors=_change(checkpoint.tensors, dict.fromkeys(names, move), dict.fromkeys(names, len(pieces))),
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


def _change(tensors: Tensors, changes: Mapping[str, Callable], rows: Mapping[str, int]) -> Tensors:
    """Return the tensors with some of them changed, to the given numbers of rows."""

    def read(name: str) -> np.ndarray:
        return changes[name](tensors[name]) if name in changes else tensors[name]

    shapes = {name: (rows[name], *shape[1:]) if name in rows else shape for name, shape in tensors.shapes.items()}
    return Tensors({name: partial(read, name) for name in tensors}, shapes, tensors.path)


def _set(config: Mapping[str, Any], table: FamilyTable, **values: int) -> dict[str, Any]:
    """Return `config.json` with new values for some of our settings."""
    return {**config, **{setting.theirs: values[setting.ours] for setting in table.settings if setting.ours in values}}

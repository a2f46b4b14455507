"""Translate between our variables and the tensors of Hugging Face's BERT: names, orientation, fusing.

A dense kernel is (inputs, outputs) here and (outputs, inputs) there. Query, key and value are three tensors there and
one here, with outputs ordered (heads, 3, head_dim).
"""

import numpy as np

FUSED = ("query", "key", "value")

EMBEDDINGS = {
    "token_embedding/embeddings": "embeddings.word_embeddings.weight",
    "embeddings/position_embedding": "embeddings.position_embeddings.weight",
    "embeddings/segment_embedding": "embeddings.token_type_embeddings.weight",
    "embeddings/layer_norm": "embeddings.LayerNorm",
}
BLOCK = {
    "attention/query_key_value": "attention.self.*",
    "attention/output": "attention.output.dense",
    "attention_layer_norm": "attention.output.LayerNorm",
    "intermediate": "intermediate.dense",
    "output": "output.dense",
    "output_layer_norm": "output.LayerNorm",
}
POOLER = {"pooler/dense": "pooler.dense"}


def backbone_table(num_layers: int) -> dict[str, str]:
    """Map our layers and variables of an encoder to Hugging Face's, without the `bert.` prefix."""
    blocks = {
        f"encoder_block_{index}/{ours}": f"encoder.layer.{index}.{theirs}"
        for index in range(num_layers)
        for ours, theirs in BLOCK.items()
    }
    return EMBEDDINGS | blocks | POOLER


def tensor_names(path: str, table: dict[str, str]) -> list[str]:
    """Return the Hugging Face tensors that hold the variable at `path`: three for a fused one, else one."""
    if path in table:
        return [table[path]]
    layer, _, variable = path.rpartition("/")
    suffix = "bias" if variable in ("bias", "beta") else "weight"
    name = f"{table[layer]}.{suffix}"
    return [name.replace("*", part) for part in FUSED] if "*" in name else [name]


def export_variable(path: str, value: np.ndarray, names: list[str], num_heads: int) -> dict[str, np.ndarray]:
    """Turn one of our variables into Hugging Face tensors."""
    if len(names) == 1:
        return {names[0]: _orient(path, value)}
    parts = value.reshape(*value.shape[:-1], num_heads, len(names), -1)  # (..., heads, 3, head_dim)
    return {
        name: _orient(path, parts[..., index, :].reshape(*value.shape[:-1], -1)) for index, name in enumerate(names)
    }


def import_variable(path: str, arrays: list[np.ndarray], num_heads: int) -> np.ndarray:
    """Turn the Hugging Face tensors of one of our variables into its value."""
    values = [_orient(path, array) for array in arrays]
    if len(values) == 1:
        return values[0]
    split = [value.reshape(*value.shape[:-1], num_heads, -1) for value in values]  # (..., heads, head_dim)
    return np.stack(split, axis=-2).reshape(*values[0].shape[:-1], -1)


def tensor_shape(path: str, shape: tuple[int, ...], names: list[str]) -> tuple[int, ...]:
    """Return the shape that each Hugging Face tensor of a variable has."""
    shape = (*shape[:-1], shape[-1] // len(names))
    return shape[::-1] if path.endswith("/kernel") else shape


def normalise_name(name: str) -> str:
    """Bring the spellings of old and prefixed checkpoints to one: no `bert.`, `LayerNorm.weight`, `LayerNorm.bias`."""
    name = name.removeprefix("bert.")
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace("LayerNorm.beta", "LayerNorm.bias")


def _orient(path: str, array: np.ndarray) -> np.ndarray:
    return array.T if path.endswith("/kernel") else array

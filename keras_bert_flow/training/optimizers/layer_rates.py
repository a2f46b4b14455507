"""Say how much of the learning rate each weight gets, by its depth in the network."""

import re
from collections.abc import Sequence

_ENCODER_BLOCK = re.compile(r"(^|/)encoder_block_(\d+)/")
_TOKEN_EMBEDDING = re.compile(r"(^|/)token_embedding/")
_EMBEDDINGS = re.compile(r"(^|/)(token_embedding|embeddings)/")


def rate_factors(paths: Sequence[str], layer_decay: float, token_embedding_factor: float = 1.0) -> tuple[float, ...]:
    """Return a factor for each path: `layer_decay` to the power of the layers above it.

    Heads and the pooler have 1, the uppermost encoder block `layer_decay`, the one below it its square, and the
    embeddings, below all blocks, the least.

    Args:
        paths: `variable.path` of each weight.
        layer_decay: 1.0 gives all weights the same rate.
        token_embedding_factor: a further factor of the token embeddings.
    Raises:
        ValueError: a decay out of (0, 1], or no path is of an encoder block.
    Source: Clark et al. 2020 (ELECTRA), section 3.1 and appendix A, arXiv:2003.10555. Its code gives the uppermost
    block the square already; here it is one layer below the head.
    """
    if not 0 < layer_decay <= 1:
        raise ValueError(f"`layer_decay` must be above 0 and at most 1. Received: layer_decay={layer_decay}. Try 0.9.")
    by_depth = _decay_by_depth(paths, layer_decay) if layer_decay < 1 else (1.0,) * len(paths)
    is_token_embedding = [_TOKEN_EMBEDDING.search(path) for path in paths]
    return tuple(
        factor * token_embedding_factor if found else factor
        for factor, found in zip(by_depth, is_token_embedding, strict=True)
    )


def _decay_by_depth(paths: Sequence[str], layer_decay: float) -> tuple[float, ...]:
    blocks = [_ENCODER_BLOCK.search(path) for path in paths]
    numbers = [int(block.group(2)) for block in blocks if block]
    if not numbers:
        raise ValueError(
            f"Rates by depth need a model with encoder blocks. Received: {', '.join(paths)}. Try layer_decay=1.0."
        )
    num_layers = max(numbers) + 1

    def layers_above(path: str, block: re.Match | None) -> int:
        if block:
            return num_layers - int(block.group(2))
        return num_layers + 1 if _EMBEDDINGS.search(path) else 0

    return tuple(layer_decay ** layers_above(path, block) for path, block in zip(paths, blocks, strict=True))

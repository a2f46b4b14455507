"""Layer-wise learning rate decay: a factor for each weight by its depth."""


def find_rate_factors(backbone, layer_decay: float = 1.0, token_embedding_factor: float = 1.0) -> dict[str, float]:
    """Return path → learning rate factor for the weights of an encoder: `layer_decay` to the power of the layers above.

    The top block has `layer_decay`, the one below it its square, and the embeddings, below all blocks, the smallest
    factor. Weights that are not in the result, those of heads and the pooler, have factor 1.

    Args:
        backbone: a `Backbone`, which knows the depth of its weights.
        layer_decay: 1.0 gives all weights the same rate.
        token_embedding_factor: an additional factor of the token embeddings.
    Returns:
        The factors; empty if all are 1.
    Raises:
        ValueError: `layer_decay` is not in (0, 1].
    Source: Clark et al. 2020 (ELECTRA), section 3.1 and appendix A, arXiv:2003.10555. Their code gives the top block
    the square; here it is one layer below the head.
    """
    if not 0 < layer_decay <= 1:
        raise ValueError(f"`layer_decay` must be above 0 and at most 1. Received: layer_decay={layer_decay}. Try 0.9.")
    if layer_decay == token_embedding_factor == 1:
        return {}
    depths = backbone.find_depths()
    head_depth = max(depths.values()) + 1
    factors = {path: layer_decay ** (head_depth - depth) for path, depth in depths.items()}
    for weight in backbone.token_embedding.weights:
        factors[weight.path] *= token_embedding_factor
    return factors

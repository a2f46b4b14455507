"""Say how each weight of a BERT is cut over the devices that share one copy of it."""

from collections.abc import Sequence

BATCH, MODEL = "batch", "model"  # axes of the mesh


def bert_layout(vocabulary_size: int, num_heads: int, intermediate_dim: int, count: int) -> dict[str, Sequence]:
    """Return the axes of each cut weight by a pattern of its whole path; the others, all small, are on every device.

    Whole attention heads go to each device: the columns of `query_key_value` are ordered (heads, 3, head_dim), the rows
    of the product behind them (heads, head_dim). So do columns and rows of the two layers of the feed-forward, and the
    pieces of the vocabulary with their biases: a device meets the others only to add up after each second product. A
    vocabulary that does not divide, such as 30,522 pieces over 4, is cut along the hidden dimension instead.

    Args:
        count: devices of one copy.
    Raises:
        ValueError: heads or the feed-forward do not divide.
    Source: Shoeybi et al. 2020 (Megatron-LM), section 3; arXiv:1909.08053.
    """
    for name, size in (("num_heads", num_heads), ("intermediate_dim", intermediate_dim)):
        if size % count:
            raise ValueError(
                f"`distribution.model_parallel` must divide the model's {name}. Received: model_parallel={count}, "
                f"{name}={size}. Choose a divisor of both num_heads and intermediate_dim."
            )
    block = r"(.*/)?encoder_block_\d+/"
    layout = {
        block + "attention/query_key_value/kernel": (None, MODEL),
        block + "attention/query_key_value/bias": (MODEL,),
        block + "attention/output/kernel": (MODEL, None),
        block + "intermediate/kernel": (None, MODEL),
        block + "intermediate/bias": (MODEL,),
        block + "output/kernel": (MODEL, None),
    }
    table = r"(.*/)?token_embedding/embeddings"
    if vocabulary_size % count:
        return layout | {table: (None, MODEL)}
    return layout | {table: (MODEL, None), r"(.*/)?mlm/bias": (MODEL,)}

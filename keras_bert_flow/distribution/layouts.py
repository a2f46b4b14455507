"""Layout map of model parallelism: how each weight of an encoder is sharded over the devices of one copy."""

from collections.abc import Mapping, Sequence

from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import BLOCK, CUT

BATCH, MODEL = "batch", CUT  # axes of the mesh


def make_layout(shape: EncoderShape, cuts: Mapping[str, tuple], count: int) -> dict[str, Sequence]:
    """Return a layout map: pattern of the full path → mesh axes of a sharded weight.

    The other weights, all small, are replicated. The vocabulary is sharded together with its output biases. A
    vocabulary that does not divide evenly, such as 30,522 pieces over 4 devices, is sharded along the hidden dimension
    instead.

    Args:
        cuts: of the weights of a block; see `models.families.family.Family`.
        count: number of devices of one copy.
    Raises:
        ValueError: the heads or the feed-forward width do not divide evenly.
    """
    for name, size in (("num_heads", shape.num_heads), ("intermediate_dim", shape.intermediate_dim)):
        if size % count:
            raise ValueError(
                f"`distribution.model_parallel` must divide the model's {name}. Received: model_parallel={count}, "
                f"{name}={size}. Choose a divisor of both num_heads and intermediate_dim."
            )
    layout: dict[str, Sequence] = {rf"(.*/)?{BLOCK}\d+/{weight}": axes for weight, axes in cuts.items()}
    table = r"(.*/)?token_embedding/embeddings"
    if shape.vocabulary_size % count:
        return layout | {table: (None, MODEL)}
    return layout | {table: (MODEL, None), r"(.*/)?mlm/bias": (MODEL,)}

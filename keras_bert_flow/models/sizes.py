"""Published model sizes, and the encoder shape of a configuration."""

from dataclasses import fields
from typing import Any

from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.registry import find_family

# Source: Devlin et al. 2019, section 3 (base, large); Turc et al. 2019, table 1, arXiv:1908.08962 (the others).
SIZES = {
    "tiny": {"num_layers": 2, "hidden_dim": 128, "num_heads": 2, "intermediate_dim": 512},
    "mini": {"num_layers": 4, "hidden_dim": 256, "num_heads": 4, "intermediate_dim": 1024},
    "small": {"num_layers": 4, "hidden_dim": 512, "num_heads": 8, "intermediate_dim": 2048},
    "medium": {"num_layers": 8, "hidden_dim": 512, "num_heads": 8, "intermediate_dim": 2048},
    "base": {"num_layers": 12, "hidden_dim": 768, "num_heads": 12, "intermediate_dim": 3072},
    "large": {"num_layers": 24, "hidden_dim": 1024, "num_heads": 16, "intermediate_dim": 4096},
}


def get_size(name: str) -> dict[str, int]:
    """Return the shape arguments of a published size by name.

    Raises:
        ValueError: there is no such size.
    """
    if name not in SIZES:
        raise ValueError(f"A size must be one of {', '.join(SIZES)}. Received: size={name!r}. Try 'tiny'.")
    return dict(SIZES[name])


def resolve_shape(model: Any, vocabulary_size: int) -> EncoderShape:
    """Return the shape of an encoder: a published size with overrides.

    Args:
        model: has `family`, `size`, attributes with the names of shape fields (None: not overridden), and `options`,
            further fields by name.
    Raises:
        ValueError: the family or size is unknown, or the settings contradict each other.
    """
    kind = find_family(model.family).shape
    names = [field.name for field in fields(kind)]
    given = {name: getattr(model, name) for name in names if getattr(model, name, None) is not None}
    for name in model.options:
        if name not in names or hasattr(model, name) or name == "vocabulary_size":
            own = [name for name in names if not hasattr(model, name) and name != "vocabulary_size"]
            raise ValueError(
                f"`model.options` must be fields of the family {model.family}: {', '.join(own)}. Received: {name}."
            )
    return kind(**get_size(model.size) | given | model.options | {"vocabulary_size": vocabulary_size})

"""List the published sizes of BERT."""

from typing import Any

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
    """Return the arguments of a named size.

    Raises:
        ValueError: there is no such size.
    """
    if name not in SIZES:
        raise ValueError(f"A size must be one of {', '.join(SIZES)}. Received: size={name!r}. Try 'tiny'.")
    return dict(SIZES[name])


def resolve_size(shape: Any) -> dict[str, int]:
    """Return the arguments of the named size `shape.size`, each replaced by the attribute of its name unless None."""
    size = get_size(shape.size)
    return size | {name: getattr(shape, name) for name in size if getattr(shape, name) is not None}

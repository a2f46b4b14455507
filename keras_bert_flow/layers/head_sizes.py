"""Check the shape of attention; importable without a backend."""


def check_heads(hidden_dim: int, num_heads: int) -> None:
    """Raise ValueError unless the width of a token divides into heads."""
    if hidden_dim % num_heads:
        raise ValueError(
            f"`hidden_dim` must be divisible by `num_heads`. Received: hidden_dim={hidden_dim}, "
            f"num_heads={num_heads}. Try hidden_dim={max(1, round(hidden_dim / num_heads)) * num_heads}."
        )

"""Keep compiled programs for models that are built anew with the same shapes."""

from collections.abc import Iterator
from contextlib import contextmanager

import keras


@contextmanager
def keeping_compilations(folder: str) -> Iterator[None]:
    """Let JAX read from a folder, within the block, what it has compiled there before; other backends are as they are.

    Each start of a fine-tuning is a model of its own, whose programs are those of the first: 86 seconds of compilation
    on two busy cores, then 8. A cache of the user's own (`JAX_COMPILATION_CACHE_DIR`) is left alone.

    Args:
        folder: exists, and is removed by the caller.
    """
    if keras.backend.backend() != "jax":
        yield
        return
    import jax
    from jax.experimental.compilation_cache.compilation_cache import reset_cache

    if jax.config.jax_compilation_cache_dir:
        yield
        return
    settings = {
        "jax_compilation_cache_dir": folder,
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    for name, value in settings.items():
        jax.config.update(name, value)
    reset_cache()  # it is made at the first compilation, and then keeps its folder
    try:
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        reset_cache()

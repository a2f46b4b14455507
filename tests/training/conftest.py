"""Let jax compile each training step once for all tests and the processes that they start."""

import os

import keras
import pytest


@pytest.fixture(scope="session", autouse=True)
def compiled_steps(tmp_path_factory):
    if keras.backend.backend() != "jax":
        yield
        return
    import jax

    settings = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("jax")),
        "jax_persistent_cache_min_compile_time_secs": 0,
    }
    for name, value in settings.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)
    yield
    for name in settings:
        del os.environ[name.upper()]
    jax.config.update("jax_compilation_cache_dir", None)

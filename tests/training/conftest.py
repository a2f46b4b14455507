"""Let jax compile each training step once for all tests and the processes that they start."""

import keras
import pytest


@pytest.fixture(scope="session", autouse=True)
def compiled_steps(tmp_path_factory):
    """Another folder of tests may have it as well, so what was there before comes back."""
    if keras.backend.backend() != "jax":
        yield
        return
    import jax

    settings = {
        "jax_compilation_cache_dir": str(tmp_path_factory.mktemp("jax")),
        "jax_persistent_cache_min_compile_time_secs": 0,
    }
    before = {name: getattr(jax.config, name) for name in settings}
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            jax.config.update(name, value)
            patch.setenv(name.upper(), str(value))
        yield
    for name, value in before.items():
        jax.config.update(name, value)

"""Let jax compile each training step once for all tests here and the processes that they start."""

from tests.training.conftest import compiled_steps

__all__ = ["compiled_steps"]

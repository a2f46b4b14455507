"""The tiny configuration of the flows."""

from tests.flows.conftest import tiny_config  # noqa: F401

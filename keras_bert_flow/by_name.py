"""Load what a registry names, when it is asked for: an entry costs no import of its module."""

from importlib import import_module
from typing import Any


def load_by_name(name: str) -> Any:
    """Return what `module:attribute` names."""
    module, attribute = name.split(":")
    return getattr(import_module(module), attribute)

"""Lazy import by name, for registries: an entry's module is imported only when the entry is used."""

from importlib import import_module
from typing import Any


def load_by_name(name: str) -> Any:
    """Import and return the attribute that `module:attribute` names."""
    module, attribute = name.split(":")
    return getattr(import_module(module), attribute)

"""Lazy import by name, for registries: an entry's module is imported only when the entry is used."""

import sys
from importlib import import_module
from typing import Any


def load_by_name(name: str) -> Any:
    """Import and return the attribute that `module:attribute` names."""
    module, attribute = name.split(":")
    return getattr(import_module(module), attribute)


def load_public(name: str) -> Any:
    """Return a public name of this package, for what no result depends on: import closures do not follow it."""
    return getattr(sys.modules[__package__], name)

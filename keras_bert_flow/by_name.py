"""Lazy import by name, and registries: an entry's module is imported only when the entry is used."""

import sys
from importlib import import_module
from typing import Any, Generic, TypeVar

Entry = TypeVar("Entry")


def load_by_name(name: str) -> Any:
    """Import and return the attribute that `module:attribute` names."""
    module, attribute = name.split(":")
    return getattr(import_module(module), attribute)


def load_public(name: str) -> Any:
    """Return a public name of this package, for what no result depends on: import closures do not follow it."""
    return getattr(sys.modules[__package__], name)


class Registry(dict[str, str], Generic[Entry]):
    """Name of an entry → `module:attribute`, in the order in which messages list the names.

    Args:
        noun: what an entry is, with its article, as an error begins.
        places: name → `module:attribute`.
    Example:
        >>> registry = Registry("A number", {"pi": "math:pi", "e": "math:e"})
        >>> registry.find("pi")
        3.141592653589793
        >>> "tau" in registry, [*registry]
        (False, ['pi', 'e'])
        >>> registry.find("tau")
        Traceback (most recent call last):
        ValueError: A number must be one of pi, e. Received: 'tau'. Use one of these.
    """

    def __init__(self, noun: str, places: dict[str, str]):
        super().__init__(places)
        self._noun = noun

    def check(self, name: object) -> None:
        """Raise ValueError unless there is an entry of this name; nothing is imported."""
        if not isinstance(name, str) or name not in self:  # JSON may hold a list, which cannot be looked up
            raise ValueError(f"{self._noun} must be one of {', '.join(self)}. Received: {name!r}. Use one of these.")

    def find(self, name: str) -> Entry:
        """Import and return an entry.

        Raises:
            ValueError: there is no such name.
        """
        self.check(name)
        return load_by_name(self[name])

"""Spare two backends what is the same on each: PyTorch, which compiles nothing, is the quickest to run it."""

import os

import pytest


@pytest.hookimpl(tryfirst=True)  # before the markers are asked for
def pytest_collection_modifyitems(items):
    if os.environ.get("KERAS_BACKEND") == "torch":
        return
    for item in items:
        if item.get_closest_marker("any_backend"):
            item.add_marker(pytest.mark.slow)

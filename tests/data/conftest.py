"""Tiny records of pre-training for the tests of what reads them."""

import pytest

from tests.oracles.tiny_records import write_tiny_records


@pytest.fixture
def folder(tmp_path):
    return write_tiny_records(tmp_path / "records")

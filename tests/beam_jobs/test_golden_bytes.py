"""Text, vocabularies and records are the bytes that they were when the revision of their stage was recorded."""

import pytest

from tests.golden import recording
from tests.golden.results import DATA, compute


@pytest.mark.parametrize("stage", DATA)
def test_bytes_are_as_recorded(tmp_path, stage):
    found = compute([stage], tmp_path)[stage]
    recorded = recording.read_golden().stages[stage].results[recording.ANYWHERE]
    assert not recording.list_new_differences(recorded, found), recording.HELP

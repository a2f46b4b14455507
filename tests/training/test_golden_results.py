"""Every stage that trains or predicts makes of a small input what it made when its revision was recorded."""

import keras
import pytest

from tests.golden import recording
from tests.golden.results import TRAINING, compute

BACKEND = keras.backend.backend()
MARKS = dict.fromkeys(("augmentation", "distillation", "finetuning", "evaluation"), pytest.mark.slow_compiled)
MARKS["pretraining"] = pytest.mark.slow_on_tensorflow


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder for what the stages make, where the numbers are of the installed versions."""
    recorded, installed = recording.read_golden().versions.get(BACKEND), recording.find_versions(BACKEND)
    if recorded != installed:
        pytest.skip(f"recorded with {recorded}, not {installed}")
    return tmp_path_factory.mktemp("golden")


@pytest.mark.parametrize("stage", [pytest.param(name, marks=MARKS.get(name, ())) for name in TRAINING])
def test_results_are_as_recorded(place, stage):
    found = compute([stage], place, every_variant=BACKEND == "torch")[stage]
    recorded = recording.read_golden().stages[stage].results[BACKEND]
    assert not recording.list_new_differences(recorded, found), recording.HELP

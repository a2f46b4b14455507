"""Kill training at every point of a save and at random moments, and compare with a run that nothing stopped.

Slow but for nothing: `test_pretrain.py` has the short form.
"""

import json
import re
import signal

import numpy as np
import pytest

from keras_bert_flow.console.interrupts import CHECKPOINTED
from keras_bert_flow.training.loop.logs import read_log
from tests.oracles.objective_records import write_objective_records
from tests.training.kill_server import Killer
from tests.training.test_pretrain import without_times

pytestmark = pytest.mark.slow

# Static masks and whole batches; masks of each pass anew and steps of three batches. Four epochs of some 80 records.
VARIANTS = {
    "static": {"total_steps": 60, "checkpoint_every_steps": 4, "log_every_steps": 7, "evaluate_every_steps": 9},
    "dynamic, accumulated": {
        "total_steps": 60,
        "checkpoint_every_steps": 4,
        "log_every_steps": 7,
        "evaluate_every_steps": 9,
        "masking": "dynamic",
        "batch_size": 6,
        "accumulate_batches": 3,
        "publish": "best",
        "learning_rate": 0.3,  # so high that it gets worse, and the best is not the last
    },
}
RANDOM_KILLS = 10  # of each variant
# In the order in which they come, checkpoints 7 and 14 of 24 steps; SIGTERM in the evaluation of step 24, whose
# checkpoint is then replaced.
MOMENTS = (
    "report:3",
    "half:7",
    "written:7",
    "renamed:7",
    "best:8",
    "line:12",
    "saved:14",
    "written:21",
    "pruning:7",
    "half:24",
    "held_out:24",
    "replaced:24",
    "model",
    "half_model",
    "manifest",
    "removed",
)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return write_objective_records(tmp_path_factory.mktemp("kills") / "records")


@pytest.fixture(scope="module")
def killer(records):
    with Killer(records=records) as killer:
        yield killer


def read_model(folder):
    """Read the files of a model, without what its card says of the time it took."""
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    files["README.md"] = re.sub(rb"\| time \| .* \|\n", b"", files["README.md"])
    return files


def results_of(folder):
    """Return all that is published but for times: each file's bytes, the log and the scores."""
    metrics = json.loads((folder / "metrics.json").read_text())
    scores = {name: value for name, value in metrics.items() if not name.endswith(("seconds", "per_second"))}
    files = read_model(folder / "model")
    return files, without_times(folder), scores, sorted(path.name for path in folder.iterdir())


def test_kills_at_every_point_of_a_save_change_nothing(records, killer):
    settings = VARIANTS["dynamic, accumulated"] | {
        "total_steps": 24,
        "log_every_steps": 3,
        "evaluate_every_steps": 8,
        "checkpoint_every_steps": 7,
    }
    output, whole = records.parent / "targeted", records.parent / "uninterrupted"
    assert killer.run(whole, **settings)[0] == 0
    for moment in MOMENTS:
        wanted = CHECKPOINTED if moment == "held_out:24" else -signal.SIGKILL
        assert killer.run(output, moment, **settings)[0] == wanted, moment
        assert not output.exists(), moment
    status, steps, _ = killer.run(output, **settings)
    assert (status, steps) == (0, [])
    assert results_of(output) == results_of(whole)
    assert list(records.parent.glob(".targeted*")) == []


@pytest.mark.parametrize("variant", VARIANTS)
def test_kills_at_random_moments_change_nothing(records, killer, variant):
    settings, folder = VARIANTS[variant], records.parent / variant
    status, steps, seconds = killer.run(folder / "whole", **settings)
    assert status == 0
    rng, kills, runs = np.random.default_rng(7), 0, 0
    while kills < RANDOM_KILLS:
        runs += 1
        assert runs <= 4 * RANDOM_KILLS  # a run that ends before its kill is followed by another
        output = folder / f"run-{sum(path.name.startswith('run-') for path in folder.iterdir())}"
        status, *_ = killer.run(output, after_seconds=rng.uniform(0, seconds / 2), **settings)
        assert status in (0, -signal.SIGKILL)
        kills += status != 0
    if not output.exists():
        assert killer.run(output, **settings)[0] == 0
    wanted = results_of(folder / "whole")
    assert [line["step"] for line in read_log(folder / "whole")] == steps
    for output in folder.glob("run-*"):
        assert results_of(output) == wanted


def test_killed_finetuning_ends_in_the_same_bits(place):
    settings = {"epochs": 2, "compare_random": False}
    output, whole = place / "killed again", place / "whole"
    with Killer(model=place / "model", tables=place) as killer:
        status, steps, seconds = killer.run(whole, **settings)
        assert status == 0
        moments = ("report:pretrained/seed-1:4", "written:10", "renamed:10", "pruning:10", "renamed:20")
        for moment in moments:
            assert killer.run(output, moment, **settings)[0] == -signal.SIGKILL, moment
        rng = np.random.default_rng(7)
        for _ in range(4):
            status, *_ = killer.run(output, after_seconds=rng.uniform(0, seconds / 3), **settings)
            assert status in (0, -signal.SIGKILL)
        assert killer.run(output, **settings)[0] == 0
    for seed in (1, 2):
        run = f"pretrained/seed-{seed}"
        assert [line["step"] for line in read_log(output / run)] == list(range(1, 21))
        assert without_times(output / run) == without_times(whole / run)
        assert read_model(output / run / "model") == read_model(whole / run / "model")

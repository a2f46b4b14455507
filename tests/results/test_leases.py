"""What running processes need, and what dead ones do not."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from keras_bert_flow.results.artifacts import locked
from keras_bert_flow.results.choosing import choose, remove_results
from keras_bert_flow.results.lineage import find_results
from keras_bert_flow.results.publishing import PAUSE, find_needs, holding_inputs, holding_results, verify
from tests.patience import PATIENCE_SECONDS
from tests.results.conftest import DAY

RUN = """
import sys
from pathlib import Path
from keras_bert_flow.results.publishing import hold_key, holding_results
with holding_results(Path(sys.argv[1])) as lease:
    for key in sys.argv[2:]:
        hold_key(key)
    if sys.argv[2:]:
        lease.close()
    print("holds", flush=True)
    sys.stdin.readline()
"""
READ = """
import sys
from keras_bert_flow.results.publishing import holding_inputs
from keras_bert_flow.results.publishing import verify
with holding_inputs():
    verify(sys.argv[1])
    print("holds", flush=True)
    sys.stdin.readline()
"""


def start(code: str, *arguments: object) -> subprocess.Popen:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process = subprocess.Popen(command, cwd=Path(__file__).parents[2], **streams)
    assert process.stdout.readline() == "holds\n"
    return process


def choose_old(store: Path, results=None):
    """Return the choices as if every result were old."""
    return choose(find_results(store) if results is None else results, time.time() + DAY, DAY, None, find_needs(store))


def list_going(store: Path) -> set[str]:
    return {choice.result.folder.name for choice in choose_old(store) if not choice.is_kept}


@pytest.mark.parametrize("place", [".", "pretraining"])
def test_run_keeps_all_until_it_knows_and_a_dead_one_nothing(store, place):
    everything = list_going(store / place)
    run = start(RUN, store)
    assert {choice.reason for choice in choose_old(store / place)} == {
        f"may be needed by {find_needs(store)[0].holder}, which does not know yet"
    }
    assert f"process {run.pid} on " in find_needs(store)[0].holder
    other = start(RUN, store, "p1", "not there yet")
    run.kill()
    run.communicate(timeout=PATIENCE_SECONDS)
    assert list_going(store / place) == everything - {"p1", "r1", "v1"}
    assert len(list(store.glob(".run-*"))) == 1  # looking removed that of the dead
    other.communicate("\n", timeout=PATIENCE_SECONDS)
    assert list_going(store / place) == everything and not list(store.glob(".run-*"))


def test_command_keeps_what_it_reads(store):
    reader = start(READ, store / "pretraining" / "p2" / "model" / "config.json")
    try:
        assert list_going(store) == {"v2", "p1", "f1"}
        (reason,) = [choice.reason for choice in choose_old(store) if choice.result.key == "p2"]
        assert reason.startswith(f"read by process {reader.pid}: ") and "verify" in reason
    finally:
        reader.communicate("\n", timeout=PATIENCE_SECONDS)
    assert "p2" in list_going(store)


@pytest.mark.parametrize("kind", ["run", "reader"])
def test_what_is_needed_between_the_choice_and_the_removal_is_kept(store, kind):
    """The second look sees nothing, since the run begins after it."""
    chosen = [choice.result for choice in choose_old(store) if choice.result.key == "p1"]
    unaware = lambda results: choose(results, time.time() + DAY, DAY, None)  # noqa: E731
    if kind == "run":
        with holding_results(store) as lease:
            lease.add("p1")
            lease.close()
            removed, kept = remove_results(store, chosen, unaware)
    else:
        with holding_inputs():
            removed, kept = remove_results(
                store, chosen, lambda results: [verify(chosen[0].folder), unaware(results)][1]
            )
    assert removed == [] and len(kept) == 1 and f"process {os.getpid()}" in kept[0].reason
    assert (store / "pretraining" / "p1" / "manifest.json").is_file()
    assert [result.key for result in remove_results(store, chosen, unaware)[0]] == ["p1"]


def test_run_looks_at_nothing_while_a_result_is_removed(store):
    with locked(store / PAUSE):
        run = subprocess.Popen(
            [sys.executable, "-c", RUN, store], cwd=Path(__file__).parents[2], stderr=subprocess.PIPE
        )
        assert b".gc.lock, held by process" in run.stderr.readline()
        assert find_needs(store)[0].is_open
    run.kill()
    run.communicate(timeout=PATIENCE_SECONDS)


def test_processes_of_a_run_share_its_lease(store):
    with holding_results(store) as lease:
        part = start(RUN, store, "p1")
        lease.close()
        part.communicate("\n", timeout=PATIENCE_SECONDS)
        (needs,) = find_needs(store)
        assert needs.keys == {"p1"} and not needs.is_open and f"process {os.getpid()} on " in needs.holder
        part = start(RUN, store)
        assert find_needs(store)[0].is_open
        part.communicate("\n", timeout=PATIENCE_SECONDS)
        assert not find_needs(store)[0].is_open


def test_lease_of_another_machine_counts_for_a_day(store):
    lease = store / f".run-{'0' * 32}.lease"
    lease.write_text("process 1 on elsewhere since 2026-01-01: kbf run\n+1\n-1\np1")
    assert list_going(store) == {"v2", "p2", "f1"}
    os.utime(lease, (0, 0))
    assert "p1" in list_going(store) and not lease.exists()

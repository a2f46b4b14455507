"""What is found in a store, whatever lies there: whole, damaged, left by a kill, locked by the living."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from keras_bert_flow.results.lineage import find_results, read_result, store_of
from tests.patience import PATIENCE_SECONDS, wait_until

MAKER = (
    "import sys, time; from keras_bert_flow.results.artifacts import publishing\n"
    "with publishing(sys.argv[1], resumable=True) as work:\n"
    "    (work / 'checkpoint').write_text('half')\n"
    "    time.sleep(1000)\n"
)
KEYS = {"v1": "vocabulary", "v2": "vocabulary", "r1": "records", "p1": "pretraining", "p2": "pretraining"}


def start_maker(output: Path) -> subprocess.Popen:
    """Start a process that is making a result, and wait until it is."""
    maker = subprocess.Popen([sys.executable, "-c", MAKER, str(output)], cwd=Path(__file__).parents[2])
    wait_until((output.with_name(f".{output.name}.work") / "checkpoint").exists)
    return maker


def test_results_are_found_by_their_manifests(store):
    results = find_results(store)
    assert {result.folder.name: result.stage for result in results} == KEYS | {"f1": "finetuning"}
    assert {result.state for result in results} == {"whole"} and {result.owner for result in results} == {None}
    order = list(KEYS.values())
    assert [result.stage for result in results] == [*order, "finetuning"]
    records = next(result for result in results if result.stage == "records")
    assert records.file_bytes == sum(path.stat().st_size for path in records.folder.iterdir())
    assert [result.name for result in results][-1] == "films"


@pytest.mark.parametrize("what", ["cut", "missing file", "grown file", "no manifest", "foreign"])
def test_damaged_result_is_a_row_that_says_so(store, what):
    folder = store / "records" / "r1"
    manifest = folder / "manifest.json"
    if what == "cut":
        manifest.write_bytes(manifest.read_bytes()[:100])
    elif what == "missing file":
        (folder / "vocab.txt").unlink()
    elif what == "grown file":
        (folder / "vocab.txt").write_text("more than was there" * 100)
    elif what == "no manifest":
        manifest.unlink()
    else:
        manifest.write_text(json.dumps(["\x1b[2J"]))
    (result,) = [result for result in find_results(store) if result.folder == folder]
    assert (result.state, result.stage) == ("damaged", "records")
    assert result.fault and "\x1b" not in result.fault
    assert len(find_results(store)) == 6


def test_work_of_the_living_has_an_owner_and_that_of_the_dead_has_none(store):
    output = store / "pretraining" / "p3"
    maker = start_maker(output)
    try:
        result = read_result(output.with_name(".p3.work"))
        assert (result.state, result.key, result.output) == ("unfinished", "p3", output)
        assert f"process {maker.pid} on " in result.owner
        assert output.with_name(".p3.lock").exists()  # looking took nothing away
    finally:
        os.kill(maker.pid, signal.SIGKILL)
        maker.wait(PATIENCE_SECONDS)
    (result,) = [result for result in find_results(store) if result.state == "unfinished"]
    assert (result.key, result.owner, result.file_bytes) == ("p3", None, 4)


def test_other_folders_links_and_files_are_no_results(store, tmp_path):
    (store / "configs").mkdir()
    (store / "configs" / "a.yaml").touch()
    (store / "records" / "link").symlink_to(store / "records" / "r1")
    (store / "records" / ".r1.lock").touch()
    (store / "mine" / "deep" / "er").mkdir(parents=True)
    assert len(find_results(store)) == 6
    (store / "vocabulary" / "v1.damaged-2").mkdir()
    assert [result.state for result in find_results(store)].count("set aside") == 1


def test_store_may_be_one_folder_of_results(store):
    assert [result.key for result in find_results(store / "pretraining")] == ["p1", "p2"] or len(
        find_results(store / "pretraining")
    ) == 2
    assert store_of(store / "pretraining" / "p1") == store
    assert store_of(store.parent / "out" / "mine") == store.parent / "out"
    with pytest.raises(ValueError, match="must hold results, and not be one"):
        find_results(store / "pretraining" / "p1")
    with pytest.raises(FileNotFoundError, match="none"):
        find_results(store / "none")

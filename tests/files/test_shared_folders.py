"""Folders that users share: who waits for whom, what is opened to whom, and what is planted is refused."""

import os
import stat

import pytest

from beam_jobs.running import remove_leftovers
from keras_bert_flow.files.paths import make_folder
from keras_bert_flow.results.artifacts import find_holder, locked, publishing
from keras_bert_flow.stores.fetching import enter
from tests.other_users import ANNE, BERT, TEAM, common, needs_root, start_as
from tests.patience import PATIENCE_SECONDS

__all__ = ["common"]
PUBLISH = """
from keras_bert_flow.results.artifacts import publishing
from keras_bert_flow.files.outputs import explain_os_error
from keras_bert_flow.files.paths import make_folder
from pathlib import Path
become()
output = Path(sys.argv[1])
make_folder(output.parent, in_store=True)
try:
    with publishing(output, resumable=len(sys.argv) > 2) as work:
        (work / "a").write_text("a")
        print("has it", flush=True)
        sys.stdin.readline()
except OSError as error:
    print(explain_os_error(error), flush=True)
"""


def mode_of(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=["1777", "2775"])
def runs(request, common):
    """A folder of results that is open to everybody, or to a group."""
    runs = common / "runs"
    runs.mkdir()
    os.chown(runs, -1, TEAM)
    runs.chmod(int(request.param, 8))
    return runs


@needs_root
def test_second_user_waits_and_is_told_who_holds_the_lock(runs):
    output = runs / "vocabulary" / "key"
    first = start_as(ANNE, PUBLISH, output)
    assert first.stdout.readline() == "has it\n"
    assert find_holder(output.with_name(".key.lock")).startswith(f"process {first.pid} on ")
    second = start_as(BERT, PUBLISH, output)
    assert f"key.lock, held by process {first.pid} on " in second.stderr.readline()
    first.communicate("\n", timeout=PATIENCE_SECONDS)
    assert second.communicate("\n", timeout=PATIENCE_SECONDS)[0].startswith("The output folder must be new.")
    third = start_as(BERT, PUBLISH, runs / "vocabulary" / "other")  # beside it, in the folder that Anne made
    assert third.communicate("\n", timeout=PATIENCE_SECONDS) == ("has it\n", "")
    assert mode_of(runs / "vocabulary") == mode_of(runs)
    assert sorted(path.name for path in (runs / "vocabulary").iterdir()) == ["key", "other"]
    assert mode_of(output) & 0o777 == 0o755 and output.stat().st_uid == ANNE


@needs_root
def test_lock_of_a_killed_user_is_no_obstacle_but_their_work_is_refused(runs):
    output = runs / "vocabulary" / "key"
    first = start_as(ANNE, PUBLISH, output, "resumable", umask="077")
    assert first.stdout.readline() == "has it\n"
    first.kill()
    first.communicate(timeout=PATIENCE_SECONDS)
    (output.with_name(".key.lock")).chmod(0o644)  # as made before locks were shared
    message, errors = start_as(BERT, PUBLISH, output).communicate("\n", timeout=PATIENCE_SECONDS)
    assert f"work must be yours to go on with it. Received: {output.with_name('.key.work')} of user {ANNE}." in message
    assert message.count("\n") == 1 and errors == ""
    output.with_name(".key.work").joinpath("a").unlink()
    output.with_name(".key.work").rmdir()
    assert start_as(BERT, PUBLISH, output).communicate("\n", timeout=PATIENCE_SECONDS) == ("has it\n", "")


@needs_root
def test_result_follows_the_umask_and_the_group(runs):
    output = runs / "vocabulary" / "key"
    start_as(ANNE, PUBLISH, output, umask="002").communicate("\n", timeout=PATIENCE_SECONDS)
    assert (mode_of(output) & 0o777, mode_of(output / "a")) == (0o775, 0o664)
    assert (output / "a").stat().st_gid == (TEAM if mode_of(runs) & stat.S_ISGID else ANNE)


def test_parents_of_an_output_are_not_opened_to_everybody(tmp_path):
    tmp_path.chmod(0o1777)
    make_folder(tmp_path / "mine" / "vocabulary", in_store=True)
    make_folder(tmp_path / "out")
    mask = os.umask(0)
    os.umask(mask)
    assert {mode_of(path) for path in tmp_path.rglob("*")} == {0o777 & ~mask}


@pytest.mark.parametrize("resumable", [False, True])
@pytest.mark.parametrize("kind", ["link", "dead link", "file"])
def test_planted_work_folder_is_refused(tmp_path, resumable, kind):
    target, work = tmp_path / "elsewhere", tmp_path / ".out.work"
    target.mkdir()
    (target / ".x.tmp").write_text("precious")
    if kind == "file":
        work.touch()
    else:
        work.symlink_to(target if kind == "link" else tmp_path / "none")
    with (
        pytest.raises(FileExistsError, match=r"must be a folder\. Received: .*\.out\.work, which is "),
        publishing(tmp_path / "out", resumable),
    ):
        pytest.fail("began")
    assert [path.name for path in target.iterdir()] == [".x.tmp"] and os.path.lexists(work)
    assert not (tmp_path / "none").exists() and not (tmp_path / ".out.lock").exists()


def test_planted_lock_is_refused_and_what_it_points_at_stays(tmp_path):
    (tmp_path / "precious").write_text("precious")
    for plant in (os.symlink, os.link):
        plant(tmp_path / "precious", tmp_path / ".out.lock")
        with pytest.raises(FileExistsError, match="A lock must be a file"), locked(tmp_path / ".out.lock"):
            pytest.fail("began")
        (tmp_path / ".out.lock").unlink()
    os.mkfifo(tmp_path / ".out.lock")
    with pytest.raises(FileExistsError, match="A lock must be a file"), locked(tmp_path / ".out.lock"):
        pytest.fail("began")
    assert (tmp_path / "precious").read_text() == "precious"


def test_planted_folder_of_a_cache_or_a_job_is_not_followed(tmp_path):
    job = tmp_path / "elsewhere" / f".{'0' * 32}"
    job.mkdir(parents=True)
    for path in (job, job.parent):
        os.utime(path, (0, 0))
    (tmp_path / ".out.work").symlink_to(job.parent)
    remove_leftovers(tmp_path)
    assert job.is_dir()
    (tmp_path / "cached").symlink_to(job.parent)
    with pytest.raises(FileExistsError, match="must be a folder"):
        enter(tmp_path / "cached")

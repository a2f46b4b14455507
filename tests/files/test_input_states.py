"""An input that changes between its digest and the end of the work is noticed, also when the change is undone."""

import os
import re
import time

import pytest

from keras_bert_flow.files.inputs import hold, hold_remote
from keras_bert_flow.results.publishing import Contents, publish
from tests.patience import PATIENCE_SECONDS


@pytest.fixture
def data(tmp_path):
    """A folder `data` with a text, a folder beside it with another text, and a link to either."""
    for name, text in (("data", "old"), ("other", "new")):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "a.txt").write_text(text)
        (tmp_path / name / "sub" / "b.txt").write_text(text)
    (tmp_path / "link").symlink_to("data")
    return tmp_path / "data"


def rewrite(data):
    (data / "a.txt").write_text("new")


def rewrite_with_old_times(data):
    times = (data / "a.txt").stat()
    (data / "a.txt").write_text("new")
    os.utime(data / "a.txt", ns=(times.st_atime_ns, times.st_mtime_ns))


def rewrite_and_undo(data):
    rewrite(data)
    (data / "a.txt").write_text("old")


def swap_and_undo(data):
    os.rename(data / "a.txt", data / "kept")
    (data / "a.txt").write_text("new")
    os.replace(data / "kept", data / "a.txt")


def swap_folder_and_undo(data):
    os.rename(data, data.with_name("kept"))
    os.rename(data.with_name("other"), data)
    os.rename(data, data.with_name("other"))
    os.rename(data.with_name("kept"), data)


def remove(data):
    (data / "a.txt").unlink()


CHANGES = [rewrite, rewrite_with_old_times, rewrite_and_undo, swap_and_undo, swap_folder_and_undo, remove]


@pytest.mark.parametrize("is_folder", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_changed_input_is_refused_also_if_the_change_is_undone(data, change, is_folder):
    inputs = hold(data if is_folder else data / "a.txt")
    inputs.check()
    change(data)
    with pytest.raises(ValueError, match=r"An input must not change .* Received: .*data.*, \w+ since .* Run again"):
        inputs.check()


def test_link_that_led_elsewhere_in_between_is_refused(data):
    link = data.with_name("link")
    inputs = [hold(link), hold(link / "a.txt"), hold(link / "sub" / "b.txt")]
    for target in ("other", "data"):
        link.unlink()
        link.symlink_to(target)
    for held in inputs:
        with pytest.raises(ValueError, match=re.escape(f"Received: {link}, a link, changed since")):
            held.check()


def test_linked_file_of_a_folder_is_that_which_it_leads_to(data):
    (data / "linked.txt").symlink_to(data.with_name("other") / "a.txt")
    inputs = hold(data)
    data.with_name("other").joinpath("a.txt").write_text("newer")
    with pytest.raises(ValueError, match=r"linked\.txt, changed"):
        inputs.check()


def test_file_that_a_folder_gets_is_refused(data):
    inputs = hold(data)
    (data / "sub" / "c.txt").write_text("more")
    with pytest.raises(ValueError, match=r"c\.txt, new since"):
        inputs.check()


def test_what_leaves_the_input_as_it_is_passes(data):
    inputs = hold(data) | hold(data / "a.txt", data / "sub" / "b.txt")
    (data / "a.txt").read_text()
    (data / ".hidden").write_text("")  # as a lock
    (data / "empty").mkdir()
    publish(data / "result", "records", "key", lambda work: Contents())
    data.with_name("beside").write_text("")
    inputs.check()


def test_pipe_has_no_state(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    inputs = hold(tmp_path / "pipe", "/dev/null")
    os.utime(tmp_path / "pipe")
    inputs.check()


def test_change_right_after_a_write_gets_another_time(tmp_path):
    """The clock of a file system stands still for some milliseconds."""
    for number in range(20):
        path = tmp_path / f"{number}.txt"
        path.write_text("old")
        inputs = hold(path)
        path.write_text("new")
        with pytest.raises(ValueError, match="changed since"):
            inputs.check()


def test_file_of_the_future_is_not_waited_for(tmp_path):
    started = time.monotonic()
    (tmp_path / "a.txt").write_text("")
    os.utime(tmp_path / "a.txt", (4e9, 4e9))
    hold(tmp_path / "a.txt")
    assert time.monotonic() - started < PATIENCE_SECONDS


def test_remote_file_with_another_state_is_refused():
    states = {"s3://b/a.txt": "5 1.0", "s3://b/b.txt": "5 1.0", "http://c": None}
    inputs = hold_remote(states, states.get)
    inputs.check()
    states["s3://b/b.txt"] = "5 2.0"
    with pytest.raises(ValueError, match=r"s3://b/b\.txt, changed since"):
        inputs.check()


def test_nothing_is_published_of_a_changed_input(data, tmp_path):
    inputs = hold(data)

    def build(work):
        (work / "made").write_text((data / "a.txt").read_text())
        rewrite_and_undo(data)
        return Contents()

    with pytest.raises(ValueError, match="An input must not change"):
        publish(tmp_path / "out", "records", "key", build, inputs=inputs)
    assert not [path.name for path in tmp_path.iterdir() if "out" in path.name]
    assert publish(tmp_path / "out", "records", "key", lambda work: Contents(), inputs=hold(data)).is_dir()

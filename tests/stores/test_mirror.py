"""Copies come in the order in which files were written, logs first, and go only where a file is gone here."""

import os

import pytest

from keras_bert_flow.stores.publishing import Mirror

pytestmark = pytest.mark.any_backend


class Place:
    """What a mirror does to a store, in order."""

    def __init__(self):
        self.done, self.content = [], {}

    def write(self, name, content):
        self.done.append(f"+{name}")
        self.content[name] = content

    def upload(self, path, name):
        self.write(name, path.read_bytes())

    def remove(self, name):
        self.done.append(f"-{name}")
        del self.content[name]


@pytest.fixture
def place():
    return Place()


def write(folder, names, start=0):
    for number, name in enumerate(names, start):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
        os.utime(folder / name, (number, number))


def test_what_says_that_others_are_whole_comes_after_them(tmp_path, place):
    names = ["step-1/state", "step-1/facts.json", "run/model", "a.json", "log.jsonl"]
    write(tmp_path, names)
    Mirror(tmp_path, place).sync()
    assert place.done == ["+log.jsonl", "+step-1/state", "+step-1/facts.json", "+run/model", "+a.json"]


def test_only_changes_are_copied_and_old_copies_go_last(tmp_path, place, monkeypatch):
    monkeypatch.setattr("keras_bert_flow.stores.publishing.SMALL_BYTES", 6)
    write(tmp_path, ["step-1/state", "step-1/facts.json", "log.jsonl", ".hidden/x", ".y.tmp"])
    mirror = Mirror(tmp_path, place)
    mirror.sync()
    place.done.clear()
    mirror.sync()
    assert place.done == []
    for name in ("state", "facts.json"):
        (tmp_path / "step-1" / name).unlink()
    write(tmp_path, ["step-2/state", "step-2/facts.json", "log.jsonl"], start=10)
    mirror.sync()
    assert place.done == ["+log.jsonl", "+step-2/state", "+step-2/facts.json", "-step-1/state", "-step-1/facts.json"]
    assert place.content.keys() == {"log.jsonl", "step-2/state", "step-2/facts.json"}


def test_what_is_published_is_not_taken_for_what_is_gone(tmp_path, place):
    write(tmp_path / "work", ["a"])
    mirror = Mirror(tmp_path / "work", place)
    mirror.sync()
    (tmp_path / "work").rename(tmp_path / "done")
    mirror.sync()
    assert place.content == {"a": b"a"}


def test_file_that_vanishes_is_passed_over(tmp_path, place, monkeypatch):
    write(tmp_path, ["a", "b"])
    mirror = Mirror(tmp_path, place)
    listed = mirror._list()
    monkeypatch.setattr(mirror, "_list", lambda: listed)
    (tmp_path / "a").unlink()
    mirror.sync()
    assert place.content == {"b": b"b"}

import threading
from pathlib import Path

import pytest

from keras_bert_flow.results.manifest import read_manifest
from keras_bert_flow.results.publishing import Contents, publish
from tests.patience import PATIENCE_SECONDS


def never(work):
    raise AssertionError("The result was there, and was built again.")


def fill(work: Path) -> Contents:
    (work / "a.txt").write_text("a")
    return Contents({"size": 3}, {"text": "digest"}, {"documents": 2})


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_result_is_described_by_its_manifest(tmp_path):
    manifest = read_manifest(publish(tmp_path / "out", "records", "key", fill))
    assert (manifest.stage, manifest.key) == ("records", "key")
    assert (manifest.config, manifest.inputs, manifest.counters) == ({"size": 3}, {"text": "digest"}, {"documents": 2})
    assert [file.name for file in manifest.files] == ["a.txt"]


@pytest.mark.parametrize("resumable", [False, True])
def test_result_is_made_once(resumable, tmp_path):
    publish(tmp_path / "out", "records", "key", fill, resumable)
    assert publish(str(tmp_path / "out"), "records", "key", never, resumable) == tmp_path / "out"
    assert names_in(tmp_path) == ["out"]


@pytest.mark.parametrize("stage_key", ["other", ""])
def test_another_result_in_the_place_is_refused_and_kept(stage_key, tmp_path):
    publish(tmp_path / "out", "records", "key", fill)
    with pytest.raises(FileExistsError, match="must be new"):
        publish(tmp_path / "out", "records", stage_key, never)
    assert read_manifest(tmp_path / "out").key == "key"


def test_result_with_a_missing_file_is_not_taken(tmp_path):
    publish(tmp_path / "out", "records", "key", fill)
    (tmp_path / "out" / "a.txt").unlink()
    with pytest.raises(FileExistsError):
        publish(tmp_path / "out", "records", "key", never)


def test_result_with_a_flipped_bit_is_not_taken(tmp_path):
    path = publish(tmp_path / "out", "records", "key", fill) / "a.txt"
    content = path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    with pytest.raises(FileExistsError, match=r"a\.txt, changed or damaged: sha256 .* move this folder away first\.$"):
        publish(tmp_path / "out", "records", "key", never)
    path.write_bytes(content)
    assert publish(tmp_path / "out", "records", "key", never) == tmp_path / "out"


def test_key_may_depend_on_what_the_builder_found(tmp_path):
    def key_of(config):
        return f"key-{config.get('size', 0)}"

    assert read_manifest(publish(tmp_path / "out", "records", key_of, fill)).key == "key-3"
    assert publish(tmp_path / "out", "records", key_of, never) == tmp_path / "out"
    with pytest.raises(FileExistsError, match="must be new"):
        publish(tmp_path / "out", "records", "key-0", never)


def test_those_who_want_the_same_result_wait_for_it(tmp_path):
    began, results = threading.Event(), []

    def slow(work):
        began.set()
        second.start()
        second.join(0.3)  # the second has every chance to come first
        return fill(work)

    second = threading.Thread(target=lambda: results.append(publish(tmp_path / "out", "records", "key", never)))
    publish(tmp_path / "out", "records", "key", slow)
    second.join(PATIENCE_SECONDS)
    assert began.is_set() and results == [tmp_path / "out"]
    assert names_in(tmp_path) == ["out"]


def test_those_who_want_another_result_in_the_place_are_refused(tmp_path):
    errors = []

    def want_another():
        try:
            publish(tmp_path / "out", "records", "another", never)
        except FileExistsError as error:
            errors.append(error)

    def slow(work):
        second.start()
        second.join(0.3)
        return fill(work)

    second = threading.Thread(target=want_another)
    publish(tmp_path / "out", "records", "key", slow)
    second.join(PATIENCE_SECONDS)
    assert len(errors) == 1


def test_error_of_the_builder_leaves_nothing(tmp_path):
    def fail(work):
        (work / "a.txt").write_text("a")
        raise ValueError("no words")

    with pytest.raises(ValueError, match="no words"):
        publish(tmp_path / "out", "records", "key", fail)
    assert names_in(tmp_path) == []


def test_resumable_build_goes_on_in_its_folder(tmp_path):
    def fail(work):
        (work / "half.txt").write_text("half")
        raise ValueError("killed")

    def go_on(work):
        assert names_in(work) == ["costs.jsonl", "half.txt"]
        return fill(work)

    with pytest.raises(ValueError, match="killed"):
        publish(tmp_path / "out", "training", "key", fail, resumable=True)
    publish(tmp_path / "out", "training", "key", go_on, resumable=True)
    assert names_in(tmp_path / "out") == ["a.txt", "costs.jsonl", "half.txt", "manifest.json"]


def test_resumable_build_that_did_nothing_leaves_nothing(tmp_path):
    def refuse(work):
        raise ValueError("bad input")

    with pytest.raises(ValueError, match="bad input"):
        publish(tmp_path / "out", "training", "key", refuse, resumable=True)
    assert names_in(tmp_path) == []


def test_kill_after_the_manifest_costs_no_second_build(tmp_path):
    publish(tmp_path / "out", "training", "key", fill, resumable=True)
    (tmp_path / "out").rename(tmp_path / ".out.work")  # as a kill before the rename leaves it
    publish(tmp_path / "out", "training", "key", never, resumable=True)
    assert names_in(tmp_path) == ["out"]


@pytest.mark.parametrize("killed", [False, True])
def test_scratch_is_neither_listed_nor_published(killed, tmp_path):
    def build(work):
        (work / "checkpoints").mkdir()
        (work / "checkpoints" / "1").write_text("1")
        return fill(work)

    publish(tmp_path / "out", "training", "key", build, resumable=True, scratch="checkpoints")
    if killed:
        (tmp_path / "out").rename(tmp_path / ".out.work")
        (tmp_path / ".out.work" / "checkpoints").mkdir()
        publish(tmp_path / "out", "training", "key", never, resumable=True, scratch="checkpoints")
    assert names_in(tmp_path / "out") == ["a.txt", "costs.jsonl", "manifest.json"]
    assert [file.name for file in read_manifest(tmp_path / "out").files] == ["a.txt"]


def test_folder_named_by_a_key_is_refused_another_result(tmp_path):
    """`kbf run` names the folder by the key that it found; the command finds its own from the inputs of its time."""
    place, key = tmp_path / "records" / ("0" * 15 + "a"), "f" * 16
    with pytest.raises(ValueError, match=rf"named by a key .* Received: {place}, for the result {key}"):
        publish(place, "records", key, never)
    with pytest.raises(ValueError, match="named by a key"):
        publish(place, "records", lambda config: key, never)
    assert publish(place.with_name(key), "records", key, fill) == place.with_name(key)
    assert publish(tmp_path / "mine" / place.name, "records", key, fill).is_dir()  # of no run

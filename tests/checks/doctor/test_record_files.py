"""Every verdict on the files of records: missing, added, damaged, without their manifest or their vocabulary."""

import json
import shutil

import pytest

from keras_bert_flow.checks.diagnose import examine_records
from keras_bert_flow.checks.findings import as_json
from keras_bert_flow.results.manifest import read_manifest, write_manifest
from tests.checks.doctor.examined import ROWS, examine, find, not_ok, verdicts
from tests.oracles.plain_records import PIECES, publish_plain


@pytest.mark.parametrize("damage", ["missing", "added", "flipped", "cut", "swapped", "vocabulary"])
def test_files_that_differ_are_all_named(tmp_path, damage):
    folder = publish_plain(tmp_path / "records", ROWS)
    one, other = sorted(folder.glob("train-*.tfrecord"))
    content = one.read_bytes()
    named = [one.name]
    if damage == "missing":
        one.unlink()
    elif damage == "added":
        named = ["train-7.tfrecord", "train-8.tfrecord"]
        for name in named:
            (folder / name).write_bytes(content)
    elif damage == "flipped":
        one.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "cut":
        one.write_bytes(content[: len(content) // 3])
    elif damage == "swapped":
        one.write_bytes(other.read_bytes())
        other.write_bytes(content)
        named = [one.name, other.name]
    else:
        named = ["vocab.txt"]
        pieces = (folder / "vocab.txt").read_text().splitlines()
        (folder / "vocab.txt").write_text("\n".join([*pieces[:-2], pieces[-1], pieces[-2]]) + "\n")
    finding = find(examine_records(folder), "files")
    assert finding.verdict == "error"
    for name in named:
        assert name in finding.value


def test_damaged_record_is_named_where_the_manifest_agrees(tmp_path):
    folder = publish_plain(tmp_path / "records", ROWS)
    path = folder / "train-00001-of-00002.tfrecord"
    content = bytearray(path.read_bytes())
    content[-30] ^= 1
    path.write_bytes(content)
    kept = [file for file in read_manifest(folder).files if file.name != path.name]
    write_manifest(folder, "records", "k", read_manifest(folder).config, {}, {}, kept)
    diagnosis = examine_records(folder)
    assert not_ok(diagnosis) == {"checksums": "error"}
    assert "record 199 of train-00001-of-00002.tfrecord" in find(diagnosis, "checksums").value
    assert (diagnosis.numbers["records_damaged"], diagnosis.numbers["records_read"]) == (1, 420)


@pytest.mark.parametrize("manifest", [None, "{"])
def test_records_without_a_manifest_are_judged_by_what_they_hold(tmp_path, manifest):
    folder = publish_plain(tmp_path / "records", ROWS)
    (folder / "manifest.json").unlink()
    if manifest is not None:
        (folder / "manifest.json").write_text(manifest)
    diagnosis = examine_records(folder)
    assert not_ok(diagnosis) == {"manifest": "error"}
    assert diagnosis.numbers["masked_tokens_wanted"] is None
    assert diagnosis.numbers["tokens_per_record"][-1][1] == 32


def test_records_without_a_vocabulary_are_not_read(tmp_path):
    folder = publish_plain(tmp_path / "records", ROWS)
    vocabulary = tmp_path / "v.txt"
    shutil.move(folder / "vocab.txt", vocabulary)
    diagnosis = examine_records(folder)
    assert not_ok(diagnosis) == {"files": "error", "vocabulary": "error"}
    assert "--vocab" in find(diagnosis, "vocabulary").remedy
    assert "records_read" not in diagnosis.numbers
    assert not_ok(examine_records(folder, vocabulary)) == {"files": "error"}
    with pytest.raises(FileNotFoundError):
        examine_records(folder, tmp_path / "nowhere.txt")
    vocabulary.write_text("a\nb\n")
    with pytest.raises(ValueError, match="none of"):
        examine_records(folder, vocabulary)


def test_vocabulary_without_a_special_piece_is_an_error(tmp_path):
    folder = publish_plain(tmp_path / "records", ROWS)
    text = (folder / "vocab.txt").read_text().replace("[SEP]", "sep")
    (folder / "vocab.txt").write_text(text)
    finding = find(examine_records(folder), "vocabulary")
    assert (finding.verdict, "[SEP]" in finding.value) == ("error", True)


def test_records_made_with_another_vocabulary_are_an_error(tmp_path):
    others = [PIECES[0], *PIECES[10:14], *PIECES[1:10], *PIECES[14:]]  # special pieces elsewhere, the size the same
    found = not_ok(examine(tmp_path / "moved", ROWS, pieces=others))
    assert found["special tokens"] == "error"
    found = not_ok(examine(tmp_path / "longer", ROWS, pieces=[*PIECES, "more"]))
    assert found == {"vocabulary": "error"}


@pytest.mark.parametrize(("rows", "held_out", "expected"), [([], None, "records"), (ROWS, [], "held-out records")])
def test_part_without_records_is_seen(tmp_path, rows, held_out, expected):
    diagnosis = examine(tmp_path, rows, held_out=held_out)
    assert verdicts(diagnosis)[expected] == ("error" if expected == "records" else "warning")


def test_folder_of_no_records_at_all(tmp_path):
    diagnosis = examine(tmp_path, [], held_out=[])
    assert not_ok(diagnosis) == {"records": "error", "held-out records": "warning"}
    assert json.loads(as_json(diagnosis))["numbers"]["records"] == 0

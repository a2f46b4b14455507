"""Records that others made: TensorFlow's files are taken in whole, and what is not as it is said to be is refused."""

import gzip
import importlib.util
import json
import subprocess
import sys

import numpy as np
import pytest

from keras_bert_flow.checks.diagnose import examine_records
from keras_bert_flow.checks.importing import convert_record, import_records
from keras_bert_flow.cli import app
from keras_bert_flow.config.text import RecordsConfig
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.records.example import decode_record
from keras_bert_flow.records.tfrecord import TFRecordFile, write_tfrecords
from keras_bert_flow.text.vocabulary import write_vocabulary
from tests.checks.doctor.examined import ROWS, not_ok
from tests.oracles import example_writer
from tests.oracles.plain_records import PIECES, encode, make_many
from tests.patience import PATIENCE_SECONDS

HELD_OUT = make_many(40, seed=99)
VERSIONS = ("1", "2")  # of the names of the features


@pytest.fixture
def place(tmp_path):
    """Write a vocabulary and files as others have them, and return their folder."""
    write_vocabulary(tmp_path / "vocab.txt", PIECES)
    for name, rows in (("a", ROWS[:150]), ("b", ROWS[150:]), ("dev", HELD_OUT)):
        write_tfrecords(tmp_path / f"tf_examples.{name}", map(encode, rows))
        (tmp_path / f"tf_examples.{name}.index").unlink()
    return tmp_path


def take_in(place, pattern="tf_examples.[ab]", held_out=("tf_examples.dev",), **settings):
    return import_records(
        [str(place / pattern)],
        RecordsConfig(**settings),
        place / "vocab.txt",
        False,
        place / "records",
        [str(place / name) for name in held_out],
    )


def rows_of(folder, part):
    return [
        {name: features[name].tolist() for name in sorted(ROWS[0])}
        for features in map(PretrainingRecords(folder, part).__getitem__, range(len(PretrainingRecords(folder, part))))
    ]


def as_read(rows):
    return [
        {name: np.array(values, np.float32 if "weights" in name else int).tolist() for name, values in row.items()}
        for row in rows
    ]


@pytest.fixture(scope="module")
def files_of_tensorflow(tmp_path_factory):
    """Write the tables by the names of both versions, and return their folder."""
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("tensorflow is not installed")
    folder = tmp_path_factory.mktemp("tensorflow")
    tables = (("a", ROWS[:150]), ("b", ROWS[150:]), ("dev", HELD_OUT))
    files = [(str(folder / f"tf{version}.{name}"), version, rows) for version in VERSIONS for name, rows in tables]
    (folder / "files.json").write_text(json.dumps(files))
    command = [sys.executable, example_writer.__file__, folder / "files.json"]
    subprocess.run(command, check=True, timeout=PATIENCE_SECONDS, capture_output=True)
    return folder


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.slow
def test_files_that_tensorflow_wrote_are_taken_in_whole(version, place, files_of_tensorflow):
    folder = take_in(place, files_of_tensorflow / f"tf{version}.[ab]", [files_of_tensorflow / f"tf{version}.dev"])
    assert rows_of(folder, "train") == [dict(sorted(row.items())) for row in as_read(ROWS)]
    assert rows_of(folder, "held_out") == [dict(sorted(row.items())) for row in as_read(HELD_OUT)]
    assert not_ok(examine_records(folder)) == {}
    assert [path.name for path in sorted(folder.glob("*.tfrecord"))] == [
        "held_out-00000-of-00001.tfrecord",
        "train-00000-of-00002.tfrecord",
        "train-00001-of-00002.tfrecord",
    ]


def test_records_keep_their_bytes_and_are_taken_in_once(place, caplog):
    folder = take_in(place)
    (name, *_) = sorted(folder.glob("train-*.tfrecord"))
    assert name.read_bytes() == (place / "tf_examples.a").read_bytes()
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert take_in(place) == folder
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert not caplog.records
    with pytest.raises(FileExistsError):
        take_in(place, held_out=())


def test_a_record_without_a_label_is_one_of_one_text():
    row = {name: values for name, values in make_many(1, pair=False, label=0)[0].items() if name[:4] != "next"}
    assert decode_record(convert_record(encode(row)))["next_sentence_labels"].tolist() == [0]
    assert convert_record(encode(ROWS[0])) == encode(ROWS[0])


def test_nothing_held_out_is_said(place, caplog):
    folder = take_in(place, held_out=())
    assert "No records are held out" in caplog.text
    assert len(TFRecordFile(folder / "held_out-00000-of-00001.tfrecord")) == 0


def spoil_a_byte(place):
    path = place / "tf_examples.b"
    content = bytearray(path.read_bytes())
    content[-10] ^= 1
    path.write_bytes(content)


def cut(place):
    path = place / "tf_examples.b"
    path.write_bytes(path.read_bytes()[:-3])


def pack(place):
    path = place / "tf_examples.b"
    path.write_bytes(gzip.compress(path.read_bytes()))


def empty(place):
    (place / "tf_examples.b").write_bytes(b"")


def shorten(place):
    short = {name: values[:-2] if "masked" in name else values for name, values in ROWS[0].items()}
    write_tfrecords(place / "tf_examples.b", [encode(short)])


def lose_a_feature(place):
    write_tfrecords(place / "tf_examples.b", [encode({n: v for n, v in ROWS[0].items() if n != "masked_lm_ids"})])


def lose_one_later(place):
    without = {n: v for n, v in ROWS[0].items() if n != "masked_lm_ids"}
    write_tfrecords(place / "tf_examples.b", [encode(ROWS[1]), encode(without)])


def take_another_vocabulary(place):
    write_vocabulary(place / "vocab.txt", PIECES[:100])


def number_otherwise(place):
    write_vocabulary(place / "vocab.txt", [*PIECES[:10], PIECES[11], PIECES[10], *PIECES[12:]])


@pytest.mark.parametrize(
    ("spoil", "settings", "words"),
    [
        (spoil_a_byte, {}, r"checksum written with it.*record \d+ of .*tf_examples.b"),
        (cut, {}, "must end where its index, or else its last record, says.*tf_examples.b"),
        (pack, {}, "must not be compressed.*tf_examples.b, in gzip"),
        (empty, {}, "must hold at least one.*tf_examples.b"),
        (shorten, {}, "one length and one number of predictions.*32 and 5 in .*.a and 32 and 3 in .*.b"),
        (lose_a_feature, {}, "features of google-research/bert.*tf_examples.b.*usable `masked_lm_ids`"),
        (lose_one_later, {}, "features of google-research/bert.*record 1 of .*tf_examples.b"),
        (take_another_vocabulary, {}, "must pass the doctor. Received: ids: .*records are wrong"),
        (number_otherwise, {}, "must pass the doctor. Received: special tokens: .*records are wrong"),
        (lambda place: None, {"masked_fraction": 0.5}, "masked tokens: .*expected.*--set records.masked_fraction"),
        (lambda place: None, {"objective": "mlm"}, "segments: .*records are wrong"),
        (lambda place: (place / "tf_examples.dev").unlink(), {}, "Records must be files.*tf_examples.dev"),
    ],
)
def test_what_is_not_as_it_is_said_to_be_is_refused(spoil, settings, words, place):
    spoil(place)
    before = sorted(place.iterdir())
    with pytest.raises((ValueError, FileNotFoundError), match=words) as caught:
        take_in(place, **settings)
    assert "\n" not in str(caught.value)
    assert sorted(place.iterdir()) == before


def test_the_same_file_is_not_for_both(place):
    with pytest.raises(ValueError, match="must be files of their own.*tf_examples.a"):
        take_in(place, held_out=["tf_examples.a"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--held-out", "tf_examples.dev"], "no --import"),
        (["--import", "tf_examples.a", "--input", "text.txt"], "without text and Apache Beam. Received: text.txt"),
        (["--import", "tf_examples.a", "--runner=FlinkRunner"], "Received: --runner=FlinkRunner"),
    ],
)
def test_the_command_refuses_what_is_for_text(options, words, place, monkeypatch):
    monkeypatch.chdir(place)
    with pytest.raises(ValueError, match=words):
        app(["records", "--vocab", "vocab.txt", "--output", "out", *options], standalone_mode=False)
    assert not (place / "out").exists()


def test_the_command_takes_records_in(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    files = ["--import", "tf_examples.[ab]", "--held-out", "tf_examples.dev"]
    app(["records", "--vocab", "vocab.txt", "--output", "out", *files], standalone_mode=False)
    assert capsys.readouterr().out.strip().endswith("out")
    assert len(PretrainingRecords(place / "out")) == 400

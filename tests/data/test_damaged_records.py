"""Records that are damaged, or hold what they must not, are named, also where Keras or a run meets them."""

import pytest

from keras_bert_flow.data.pretraining import pretraining_dataset
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.results.manifest import read_manifest, write_manifest
from keras_bert_flow.training.pretraining.pretrain import pretrain
from keras_bert_flow.training.pretraining.pretrainers import make_pretrainer
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records

# Keras itself reads the first two batches of an interval; a bad record has to lie behind them to be met inside `fit`.
ONE_INTERVAL = make_tiny_config(
    batch_size=1, total_steps=30, log_every_steps=30, evaluate_every_steps=30, checkpoint_every_steps=30
)


@pytest.fixture
def folder(tmp_path):
    return write_tiny_records(tmp_path / "records")


def cut_vocabulary(folder):
    """Take the last of the 50 pieces away, with a manifest that agrees."""
    manifest = read_manifest(folder)
    pieces = (folder / "vocab.txt").read_text().splitlines()[:49]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    files = [file for file in manifest.files if "tfrecord" in file.name]
    write_manifest(folder, "records", "k", dict(manifest.config) | {"vocabulary_size": 49}, {}, {}, files)


@pytest.mark.any_backend
@pytest.mark.parametrize("part", ["train", "held_out"])
def test_ids_beyond_the_vocabulary_are_refused(folder, part):
    cut_vocabulary(folder)  # 49 is an id of the records
    records = PretrainingRecords(folder, part)
    with pytest.raises(ValueError, match=f"below the vocabulary's size, 49. Received: 49 in record .*{part}-0000"):
        for index in range(len(records)):
            records[index]


def damage_a_record_of_training(folder):
    """Damage one record so that the manifest agrees: only reading the record itself can tell."""
    for number in range(2):
        path = folder / f"train-0000{number}-of-00002.tfrecord"
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    known = [file for file in read_manifest(folder).files if not file.name.endswith(".tfrecord")]
    write_manifest(folder, "records", "k", read_manifest(folder).config, {}, {}, known)


@pytest.mark.slow_compiled
def test_fit_names_the_damaged_record(folder):
    damage_a_record_of_training(folder)
    model = make_pretrainer(make_tiny_config().model, 50)
    model.compile()
    # TensorFlow's own error is of another type; it has the line in it.
    with pytest.raises(Exception, match="record [0-9]+ of .*/train-0000[01]-of-00002.tfrecord, damaged"):
        model.fit(pretraining_dataset(folder, 5), steps_per_epoch=10, shuffle=False, verbose=0)


@pytest.mark.any_backend
def test_pretrain_names_the_damaged_record_on_one_line(folder):
    damage_a_record_of_training(folder)
    with pytest.raises(ValueError, match="record [0-9]+ of .*/train-0000[01]-of-00002.tfrecord, damaged") as caught:
        pretrain(ONE_INTERVAL, folder, folder.parent / "out")
    assert "\n" not in str(caught.value)
    assert not (folder.parent / "out").exists()


@pytest.mark.any_backend
def test_pretrain_names_ids_beyond_the_vocabulary_on_one_line(folder):
    cut_vocabulary(folder)
    with pytest.raises(
        ValueError, match="below the vocabulary's size, 49. Received: 49 in record .*train-0000"
    ) as caught:
        pretrain(ONE_INTERVAL, folder, folder.parent / "out")
    assert "\n" not in str(caught.value)

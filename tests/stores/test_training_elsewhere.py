"""What is trained on records of an object store has the weights of a disk, to the bit, whatever is killed."""

import shutil

import pytest

from keras_bert_flow.prediction.load import load
from keras_bert_flow.stores.fetching import FETCHED, cache_root, fetch, stop_downloads
from keras_bert_flow.training.pretraining.pretrain import pretrain
from tests.commands import assert_refused, kbf
from tests.oracles.killed_pretraining import Killed
from tests.oracles.tiny_model import write_tiny_model
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records
from tests.troubled_store import CUT

pytestmark = pytest.mark.any_backend

TASK = "task: {{name: t, train: {train}, dev: {train}}}\nfinetuning: {{batch_size: 2, epochs: 1, seeds: [1]}}\n"


@pytest.fixture
def records(tmp_path, put):
    folder = write_tiny_records(tmp_path / "records", train=(40, 30))
    return folder, put(folder, "made/r")


def weights(run):
    return (run / "model" / "model.safetensors").read_bytes()


@pytest.mark.slow
def test_killed_training_ends_with_the_weights_of_a_disk(records, tmp_path, trouble):
    folder, address = records
    config = make_tiny_config(masking="dynamic", bag_of_words=1.0, output_bias="unigram")
    from_disk = weights(pretrain(config, folder, tmp_path / "disk", lambda line: None))
    trouble.decide = lambda number, method, path: CUT if number % 4 == 2 else None
    for name, last, is_cold in (("cold", 3, True), ("warm", 6, False)):

        def die(line, last=last):
            if line["step"] > last:
                raise Killed

        with pytest.raises(Killed):
            pretrain(config, address, tmp_path / name, die)
        stop_downloads()
        if is_cold:
            shutil.rmtree(cache_root() / FETCHED)
        assert weights(pretrain(config, address, tmp_path / name, lambda line: None)) == from_disk


def test_model_is_loaded_from_elsewhere(put, tmp_path):
    model = write_tiny_model(tmp_path / "theirs")
    assert load(put(model, "hf/model")).predict(["a b"]) == load(model).predict(["a b"])


@pytest.mark.slow
def test_commands_take_what_is_elsewhere(records, tmp_path, put, trouble):
    folder, address = records
    model = write_tiny_model(tmp_path / "theirs")
    status, shown, error = kbf("inspect", address, "-n", 1)
    assert (status, shown) == (0, kbf("inspect", folder, "-n", 1)[1]), error
    done = kbf("doctor", address, "--json")
    assert done[1].replace(str(fetch(address)), str(folder)) == kbf("doctor", folder, "--json")[1], done[2]
    there = put(model, "hf/model")
    assert kbf("predict", "a b", "--model", there)[:2] == kbf("predict", "a b", "--model", model)[:2]


@pytest.mark.slow
def test_commands_say_what_is_wrong_with_what_is_elsewhere(records, tmp_path, trouble, spoil):
    (tmp_path / "t.yaml").write_text(TASK.format(train=tmp_path / "t.tsv"))
    (tmp_path / "t.tsv").write_text("text\tlabel\ngood\tyes\nbad\tno\n")
    output = ("--output", tmp_path / "out")
    assert_refused(
        kbf("finetune", "--model", "s3://bucket/none", "--task", tmp_path / "t.yaml", *output), "bucket/none"
    )
    assert_refused(kbf("pretrain", "--records", "s3://nobucket/r", *output), "s3://nobucket/r")
    spoil("made/r/vocab.txt")
    assert_refused(kbf("pretrain", "--records", records[1], *output), "made/r/vocab.txt, changed or damaged")
    assert not (tmp_path / "out").exists()

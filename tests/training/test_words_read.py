"""Models saved at numbers of words: at which step, that they change nothing, and that a killed run saves them too."""

import logging

import pytest
from transformers import BertForPreTraining

from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.training.pretraining.pretrain import pretrain
from tests.oracles.killed_pretraining import Killed
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records

pytestmark = pytest.mark.any_backend

SETTINGS = {"decay": "constant", "warmup_steps": 0, "checkpoint_every_steps": 3}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return write_tiny_records(tmp_path_factory.mktemp("words_read") / "records", train=(30, 20))


def run(records, output, **settings):
    return pretrain(make_tiny_config(**SETTINGS | settings), records, output, lambda line: None)


def weights_of(folder):
    return (folder / "model.safetensors").read_bytes()


def count_words(records):
    """Count the words of an epoch in the records as they are stored, hidden ones put back."""
    opened, words = PretrainingRecords(records), 0
    pieces = opened.read_tokenizer().pieces
    for number in range(len(opened)):
        row = opened[number]
        tokens = row["input_ids"].copy()
        hidden = row["masked_lm_weights"] > 0
        tokens[row["masked_lm_positions"][hidden]] = row["masked_lm_ids"][hidden]
        names = [pieces[token] for token in tokens[: int(row["input_mask"].sum())]]
        words += sum(not name.startswith(("##", "[")) for name in names)
    return words


def test_model_is_saved_at_the_step_that_reaches_the_words(records, tmp_path):
    words = 5 * count_words(records) / 50  # of a step of 5 rows, of 50
    numbers = [round(1.5 * words), round(1.6 * words), round(3.5 * words)]
    whole = run(records, tmp_path / "whole", total_steps=5, save_at_words=numbers)
    plain = run(records, tmp_path / "plain", total_steps=5)
    assert weights_of(whole / "model") == weights_of(plain / "model")
    assert sorted(path.name for path in (whole / "words").iterdir()) == sorted(map(str, numbers))
    for number, steps in zip(numbers, (2, 2, 4), strict=True):
        short = run(records, tmp_path / f"short-{steps}", total_steps=steps)  # at once if it is there
        assert weights_of(whole / "words" / str(number)) == weights_of(short / "model")
    _, loading = BertForPreTraining.from_pretrained(whole / "words" / str(numbers[0]), output_loading_info=True)
    assert not loading["missing_keys"] and not loading["unexpected_keys"]
    assert f"words/{numbers[0]}/model.safetensors" in (whole / "manifest.json").read_text()


def test_killed_run_saves_them_too(records, tmp_path):
    words = 5 * count_words(records) / 50
    number = int(2.5 * words)  # reached by step 3, between the checkpoint of step 2 and the kill
    settings = {"total_steps": 6, "log_every_steps": 1, "checkpoint_every_steps": 2, "save_at_words": [number]}
    config = make_tiny_config(**SETTINGS | settings)

    def die(line):
        if line["step"] > 3:
            (saved,) = tmp_path.glob(f".killed.work/words/{number}")
            (saved / "half.tmp").touch()  # as if it had been killed while it saved
            raise Killed

    finished = pretrain(config, records, tmp_path / "finished", lambda line: None)
    with pytest.raises(Killed):
        pretrain(config, records, tmp_path / "killed", die)
    killed = pretrain(config, records, tmp_path / "killed", lambda line: None)
    for place in ("model", f"words/{number}"):
        assert weights_of(killed / place) == weights_of(finished / place)
    assert not (killed / "words" / str(number) / "half.tmp").exists()


def test_numbers_that_are_not_reached_are_told(records, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        run(records, tmp_path / "late", total_steps=1, save_at_words=[10**6])
    assert "`save_at_words`: the last step is after" in caplog.text and "before [1000000]" in caplog.text
    assert not (tmp_path / "late" / "words").exists()


@pytest.mark.parametrize("numbers", [[2, 1], [1, 1], [0], [-1, 1]])
def test_numbers_must_ascend(numbers):
    with pytest.raises(ValueError, match="`save_at_words` must be numbers above 0 in ascending order"):
        make_tiny_config(save_at_words=numbers)


def test_mean_is_that_of_the_rows(records):
    opened = PretrainingRecords(records)
    assert opened.mean_words == pytest.approx(count_words(records) / len(opened))

"""Runs whose loss has stalled near that of token frequencies are told so, once; others are not."""

import logging

import numpy as np
import pytest
from scipy.stats import entropy

from keras_bert_flow.config.pretraining import PretrainingConfig
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.training.pretraining import validation
from keras_bert_flow.training.pretraining.pretrain import pretrain
from keras_bert_flow.training.pretraining.validation import PlateauWatch, find_unigram_loss
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records

pytestmark = pytest.mark.any_backend

UNIGRAM = 6.66


def make_watch(earlier=(), total_steps=10_000, **settings):
    return PlateauWatch(lambda: UNIGRAM, PretrainingConfig(total_steps=total_steps, **settings), earlier)


def see_all(losses, name="mlm_loss", **options):
    """Return the steps of 1,000 at which a run of 10,000 is told something, and what."""
    watch = make_watch(**options)
    lines = [{"step": 1000 * (place + 1), "loss": 9.0, name: loss} for place, loss in enumerate(losses)]
    return {line["step"]: remark for line in lines if (remark := watch.see(line))}


def test_stalled_loss_near_that_of_frequencies_is_told_once():
    told = see_all([7.5, 6.4, 6.15, 6.1, 6.08, 6.07, 6.06])
    assert list(told) == [5000]
    assert told[5000] == (
        "The masked-LM loss is on a plateau: 6.08 at step 5,000 and 6.15 at 3,000; token frequencies alone give 6.66. "
        "Try pretraining.optimizer=muon, pretraining.token_embeddings=co_occurrence, pretraining.output_bias=unigram, "
        "smaller batches or more steps."
    )


def test_remedies_in_use_are_not_proposed():
    used = {"optimizer": "muon", "token_embeddings": "co_occurrence", "output_bias": "unigram"}
    (told,) = see_all([6.1] * 4, **used).values()
    assert told.endswith("give 6.66. Try smaller batches or more steps.")


def test_model_with_one_head_has_one_loss():
    watch = make_watch(total_steps=10, warmup_steps=0)
    assert [bool(watch.see({"step": step, "loss": 6.1})) for step in (1, 2, 3, 4)] == [False, False, True, False]


@pytest.mark.parametrize(
    "losses",
    [
        [6.6, 6.3, 6.0, 5.7, 5.4],  # falls
        [6.6, 5.0, 4.5, 4.4, 4.39, 4.38, 4.38],  # has stalled far below
        [6.5, 6.4],  # too early
    ],
)
def test_other_runs_are_left_alone(losses):
    assert see_all(losses) == {}


def test_resumed_run_knows_its_log_and_repeats_nothing():
    earlier = [{"step": 1000 * place, "mlm_loss": 6.1} for place in range(1, 3)]
    watch = make_watch(earlier)
    assert watch.see({"step": 3000, "mlm_loss": 6.1})
    watch = make_watch([*earlier, {"step": 3000, "mlm_loss": 6.1}])
    assert not watch.see({"step": 4000, "mlm_loss": 6.1})


def test_lines_without_a_loss_are_passed_over():
    """Every step since the last line was left out."""
    watch = make_watch(total_steps=10, warmup_steps=0)
    assert watch.see({"step": 1, "skipped_steps": 1}) is None


def test_unigram_loss_is_the_entropy_of_masked_tokens(tmp_path, monkeypatch):
    records = PretrainingRecords(write_tiny_records(tmp_path / "records", train=(40, 60)))
    masked = [record["masked_lm_ids"][record["masked_lm_weights"] > 0] for record in records]
    assert find_unigram_loss(records) == pytest.approx(entropy(np.bincount(np.concatenate(masked))))
    monkeypatch.setattr(validation, "SAMPLE_RECORDS", 34)  # every third
    assert find_unigram_loss(records) == pytest.approx(entropy(np.bincount(np.concatenate(masked[::3]))))


def test_run_says_that_it_is_on_a_plateau(tmp_path, caplog):
    records = write_tiny_records(tmp_path / "records")  # random words: there is nothing but frequencies to learn
    config = make_tiny_config(learning_rate=1e-6)
    with caplog.at_level(logging.WARNING, logger="keras_bert_flow"):
        pretrain(config, records, tmp_path / "out", lambda line: None)
    assert [record.message.split(":")[0] for record in caplog.records] == ["The masked-LM loss is on a plateau"]

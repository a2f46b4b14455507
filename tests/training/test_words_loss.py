"""Pre-training with a bag of words: what is learnt and published, and that a killed run ends in the same bits."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file
from transformers import BertForPreTraining

from keras_bert_flow.training.loop.logs import read_log
from keras_bert_flow.training.pretraining.pretrain import pretrain
from tests.oracles.killed_pretraining import pretrain_killed_and_whole
from tests.oracles.objective_records import write_objective_records
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records

WITHOUT_DROPOUT = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return write_tiny_records(tmp_path_factory.mktemp("bag_of_words") / "records", train=(60, 40))


def run(records, output, **settings):
    pretrain(make_tiny_config(WITHOUT_DROPOUT, **settings), records, output, lambda line: None)
    return output


def weights_of(folder):
    return load_file(folder / "model" / "model.safetensors")


def differ(some, others):
    assert some.keys() == others.keys()
    return max(float(np.abs(some[name] - others[name]).max()) for name in some)


@pytest.mark.slow
@pytest.mark.any_backend
def test_loss_is_logged_and_its_head_is_published_beside_the_others(records, tmp_path):
    plain = run(records, tmp_path / "plain", output_bias="unigram")
    more = run(records, tmp_path / "more", output_bias="unigram", bag_of_words=0.5)
    shared, words = {}, {}
    for name, values in weights_of(more).items():
        (words if name.startswith("cls.words.") else shared)[name] = values
    assert differ(weights_of(plain), shared) > 1e-3
    parameters = [json.loads((folder / "metrics.json").read_text())["parameters"] for folder in (plain, more)]
    assert parameters[1] - parameters[0] == sum(values.size for values in words.values())
    line = read_log(more)[-1]
    assert line["loss"] == pytest.approx(line["mlm_loss"] + line["nsp_loss"] + 0.5 * line["words_loss"], rel=1e-5)
    _, loading = BertForPreTraining.from_pretrained(more / "model", output_loading_info=True)
    assert not loading["missing_keys"] and set(loading["unexpected_keys"]) == words.keys()


@pytest.mark.any_backend
def test_run_that_goes_on_from_a_model_has_its_head(records, tmp_path):
    first = run(records, tmp_path / "first", total_steps=3, bag_of_words=1.0)
    still = {"total_steps": 1, "warmup_steps": 0, "learning_rate": 1e-12, "bag_of_words": 1.0}
    config = make_tiny_config(WITHOUT_DROPOUT, **still)
    pretrain(config, records, tmp_path / "then", lambda line: None, initial_model=first / "model")
    assert differ(weights_of(first), weights_of(tmp_path / "then")) < 1e-9


@pytest.mark.any_backend
@pytest.mark.slow
def test_killed_run_ends_in_the_same_bits(records, tmp_path):
    steps = {"total_steps": 6, "log_every_steps": 2, "checkpoint_every_steps": 3, "warmup_steps": 1}
    config = make_tiny_config(**steps, bag_of_words=1.0, optimizer="muon", masking="static")
    killed, finished = pretrain_killed_and_whole(config, records, tmp_path)
    assert killed == finished


@pytest.mark.any_backend
@pytest.mark.slow
def test_four_parts_make_the_step_of_the_whole(records, tmp_path):
    settings = {"batch_size": 32, "total_steps": 5, "warmup_steps": 0, "learning_rate": 0.003, "bag_of_words": 2.0}
    whole, parts = (
        run(records, tmp_path / str(count), accumulate_batches=count, log_every_steps=2, **settings) for count in (1, 4)
    )
    assert differ(weights_of(whole), weights_of(parts)) < 3e-5  # roundings: see test_accumulation.py
    for name in ("loss", "words_loss"):
        found = [[line[name] for line in read_log(folder)] for folder in (whole, parts)]
        np.testing.assert_allclose(*found, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.any_backend
def test_killed_run_on_cut_records_ends_in_the_same_bits(tmp_path):
    folder = write_objective_records(tmp_path / "records", "mlm", sequence_length=30)
    steps = {"total_steps": 6, "log_every_steps": 2, "checkpoint_every_steps": 3, "warmup_steps": 1}
    shares = {"masked_fraction": 0.3, "masked_fraction_end": 0.1}
    config = make_tiny_config(**steps, bag_of_words=1.0, masking="dynamic", sequence_length=16, **shares)
    killed, finished = pretrain_killed_and_whole(config, folder, tmp_path)
    assert killed == finished  # by a model of 16 positions


@pytest.mark.any_backend
@pytest.mark.slow
def test_another_share_of_masks_is_trained_on_and_the_held_out_records_keep_theirs(records, tmp_path):
    few, more = (run(records, tmp_path / str(share), masking="dynamic", masked_fraction=share) for share in (0.05, 0.5))
    assert differ(weights_of(few), weights_of(more)) > 1e-3
    scores = [json.loads((folder / "metrics.json").read_text())["unigram_accuracy"] for folder in (few, more)]
    assert scores[0] == scores[1]  # of the masked tokens themselves


@pytest.mark.any_backend
def test_share_at_the_end_is_trained_on(records, tmp_path):
    ends = ({}, {"masked_fraction_end": 0.1})
    kept, changed = (
        run(records, tmp_path / str(len(end)), total_steps=4, masking="dynamic", masked_fraction=0.5, **end)
        for end in ends
    )
    assert differ(weights_of(kept), weights_of(changed)) > 1e-3


@pytest.mark.slow
def test_killed_run_with_drawn_shares_ends_in_the_same_bits(records, tmp_path):
    steps = {"total_steps": 6, "log_every_steps": 2, "checkpoint_every_steps": 3, "warmup_steps": 1}
    config = make_tiny_config(**steps, masking="dynamic", masked_fraction=0.8, masked_fraction_least=0.1)
    killed, finished = pretrain_killed_and_whole(config, records, tmp_path)
    assert killed == finished


def test_drawn_shares_without_limits_are_refused():
    for others in ({}, {"masked_fraction": 0.1}, {"masked_fraction": 0.9, "masked_fraction_end": 0.5}):
        with pytest.raises(
            ValueError, match=r"`masked_fraction_least` must be below a `masked_fraction` that does not"
        ):
            make_tiny_config(masking="dynamic", masked_fraction_least=0.1, **others)


def test_share_of_static_masks_is_refused():
    with pytest.raises(ValueError, match=r"`masked_fraction` needs dynamic masking\. Received: .*0\.3"):
        make_tiny_config(masking="static", masked_fraction=0.3)
    for others in ({}, {"masked_fraction": 0.3, "minutes": 1.0}):
        with pytest.raises(ValueError, match=r"`masked_fraction_end` must have a `masked_fraction` to begin with, and"):
            make_tiny_config(masking="dynamic", masked_fraction_end=0.1, **others)

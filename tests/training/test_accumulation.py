"""A step of four parts is the step of their whole, though the parts hold different numbers of predictions."""

from itertools import islice

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

from keras_bert_flow.data import pretraining
from keras_bert_flow.data.pretraining import pretraining_dataset
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.models.defaults import token_loss
from keras_bert_flow.training.loop.logs import read_log
from keras_bert_flow.training.optimizers.adam import make_optimizer
from keras_bert_flow.training.pretraining.pretrain import pretrain
from keras_bert_flow.training.pretraining.pretrainers import make_pretrainer
from tests.oracles.killed_pretraining import pretrain_killed_and_whole
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records

WITHOUT_DROPOUT = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
FIVE_STEPS = {"batch_size": 32, "total_steps": 5, "warmup_steps": 0, "log_every_steps": 2, "clip_norm": 0.5}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return write_tiny_records(tmp_path_factory.mktemp("accumulation") / "records", train=(60, 40))


def run_five_steps(records, output, accumulate_batches, **settings):
    config = make_tiny_config(
        WITHOUT_DROPOUT, **FIVE_STEPS, learning_rate=0.003, accumulate_batches=accumulate_batches, **settings
    )
    pretrain(config, records, output, lambda line: None)
    return load_file(output / "model" / "model.safetensors"), read_log(output)


def largest_difference(some, others):
    assert some.keys() == others.keys()
    return max(float(np.abs(some[name] - others[name]).max()) for name in some)


@pytest.mark.any_backend
@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("lamb", marks=pytest.mark.any_backend)])
@pytest.mark.first_form
def test_four_parts_make_the_step_of_the_whole(records, tmp_path, optimizer):
    whole, whole_log = run_five_steps(records, tmp_path / "whole", 1, optimizer=optimizer)
    parts, parts_log = run_five_steps(records, tmp_path / "parts", 4, optimizer=optimizer)
    # Gradients differ by roundings of about 1e-8. Adam divides by their size, but by no less than epsilon, 1e-6: where
    # a gradient is rounding alone (that of the bias of keys is 0) a step of 0.003 differs by a hundredth, 3e-5.
    assert largest_difference(parts, whole) < 3e-5
    assert [line["step"] for line in parts_log] == [line["step"] for line in whole_log] == [2, 4, 5]
    for name in ("loss", "mlm_loss", "nsp_loss"):
        np.testing.assert_allclose(
            [line[name] for line in parts_log], [line[name] for line in whole_log], rtol=1e-5, err_msg=name
        )


@pytest.mark.any_backend
@pytest.mark.slow
def test_means_of_means_are_another_step(records, tmp_path, monkeypatch):
    """The comparison above would notice weights that look at their own part only."""
    whole, _ = run_five_steps(records, tmp_path / "whole", 1)
    monkeypatch.setattr(
        pretraining,
        "take_part",
        lambda batch, part, count, take=pretraining.take_part: _forget_the_others(take(batch, part, count)),
    )
    parts, _ = run_five_steps(records, tmp_path / "parts", 4)
    assert largest_difference(parts, whole) > 2e-3


def _forget_the_others(batch):
    x, y, weights = batch
    return x, y, {name: weight / weight.sum() for name, weight in weights.items()}


def test_parts_hold_the_batch_and_its_weights(records):
    records = PretrainingRecords(records)
    x, y, weights = next(iter(pretraining_dataset(records, 8, seed=3, start_step=2)))
    parts = list(islice(pretraining_dataset(records, 8, seed=3, start_step=2, accumulate_batches=4), 4))
    for group, name in [(0, name) for name in x] + [(1, name) for name in y]:
        np.testing.assert_array_equal(np.concatenate([part[group][name] for part in parts]), (x, y)[group][name])
    counts = [int((part[2]["mlm"] > 0).sum()) for part in parts]
    assert len(set(counts)) > 1  # else a mean of means would do
    for part in parts:
        np.testing.assert_allclose(part[2]["mlm"][part[2]["mlm"] > 0], 4 / sum(counts), rtol=1e-6)
        np.testing.assert_allclose(part[2]["nsp"], [1 / 2, 1 / 2])
        assert {weight.dtype for weight in part[2].values()} == {np.dtype("float32")}
    assert sum(counts) == weights["mlm"].sum()


def test_batch_without_predictions_weighs_nothing():
    weights = {"mlm": np.zeros((4, 3), "float32"), "nsp": np.ones(4, "float32")}
    parts = pretraining.SplitBatch(2).flat_map(({}, {}, weights))
    assert [part[2]["mlm"].sum() for part in parts] == [0, 0]
    assert [part[2]["nsp"].tolist() for part in parts] == [[0.5, 0.5]] * 2


def test_batch_that_does_not_split_is_refused(records):
    with pytest.raises(ValueError, match="must split into equal parts. Received: 6 sequences for 4 parts. Try 4"):
        next(iter(pretraining_dataset(PretrainingRecords(records), 6, accumulate_batches=4)))
    with pytest.raises(ValueError, match="must be a multiple of `accumulate_batches`. Received: batch_size=6, accum"):
        make_tiny_config(batch_size=6, accumulate_batches=4)


@pytest.mark.any_backend
def test_optimizer_counts_steps(records):
    model = make_pretrainer(make_tiny_config().model, 50)
    optimizer = make_optimizer("bert_adam", 0.01, accumulate_batches=3)
    model.compile(optimizer=optimizer, loss={name: token_loss(is_sum=True) for name in model.output})
    model.fit(pretraining_dataset(records, 6, accumulate_batches=3), steps_per_epoch=5 * 3, verbose=0)
    assert int(keras.ops.convert_to_numpy(optimizer.iterations)) == 5


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("optimizer", "accumulate_batches"),
    [
        ("adamw", 2),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("bert_adam", 1), ("lamb", 2))),
    ],
)
@pytest.mark.slow
def test_killed_run_ends_in_the_same_bits(records, tmp_path, optimizer, accumulate_batches):
    settings = {"total_steps": 6, "log_every_steps": 2, "checkpoint_every_steps": 3, "batch_size": 4}
    settings |= {"optimizer": optimizer, "accumulate_batches": accumulate_batches, "warmup_steps": 1}
    config, steps = make_tiny_config(**settings), []
    killed, finished = pretrain_killed_and_whole(config, records, tmp_path, lambda line: steps.append(line["step"]))
    assert steps == [4, 6]
    assert killed == finished

"""Half precision: what stays float32 in fact, and runs in float16 whose loss is scaled."""

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

from keras_bert_flow.backends.runtime import arithmetic
from keras_bert_flow.models.backbone import BertBackbone
from keras_bert_flow.models.defaults import token_loss
from keras_bert_flow.models.pretraining.masked_lm import BertPretrainer
from keras_bert_flow.training.loop.logs import read_log
from keras_bert_flow.training.optimizers import guard
from keras_bert_flow.training.pretraining.pretrain import pretrain
from tests.oracles.op_dtypes import find_dtypes
from tests.oracles.small_bert import SMALL, make_inputs
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records

PRECISIONS = ["float32", "mixed_bfloat16", "mixed_float16"]
# Of softmax, layer norm and cross-entropy.
OPERATIONS = {
    "jax": {"exp", "log", "rsqrt"},
    "tensorflow": {"Exp", "Log", "Rsqrt", "Softmax"},
    "torch": {"_softmax", "log", "native_layer_norm"},
}
ROUNDING = {"float32": 1e-4, "mixed_bfloat16": 2.0**-8, "mixed_float16": 2.0**-11}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return write_tiny_records(tmp_path_factory.mktemp("precision") / "records")


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.first_form
def test_softmax_layer_norm_and_losses_are_computed_in_float32(precision):
    with arithmetic(precision):
        model = BertPretrainer(BertBackbone(**SMALL))
    model.compile()
    inputs = make_inputs(masks_per_sequence=2)
    labels = {"mlm": np.ones((4, 2), "int32"), "nsp": np.ones(4, "int32")}
    weights = {name: np.ones(label.shape, "float32") for name, label in labels.items()}

    def compute_loss(*arrays):
        outputs = model(dict(zip(inputs, arrays, strict=True)), training=True)
        return model.compute_loss(y=labels, y_pred=outputs, sample_weight=weights)

    found = find_dtypes(compute_loss, *inputs.values())
    assert set(found) == OPERATIONS[keras.backend.backend()]
    if keras.backend.backend() == "torch":  # is given bfloat16 and computes in float32: tests/layers/test_attention.py
        # The other one is that of the loss, which takes the logarithm as well.
        assert found.pop("_softmax") == {"float32"} | ({"bfloat16"} if precision == "mixed_bfloat16" else set())
    assert set.union(*found.values()) == {"float32"}, found


@pytest.mark.parametrize("precision", PRECISIONS)
def test_layer_norm_keeps_what_half_precision_loses(precision):
    """The mean of squares overflows in float16, and its difference to the squared mean drowns in bfloat16."""
    with arithmetic(precision):
        layer = BertBackbone(**SMALL).get_layer("encoder_block_0").output_layer_norm
    inputs = 512 + 4.0 * np.arange(24, dtype="float32")[None]  # exact in both halves
    found = np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(layer(inputs), "float32")))
    wanted = (inputs - inputs.mean()) / inputs.astype("float64").std()
    np.testing.assert_allclose(found, wanted, rtol=ROUNDING[precision])  # of the result


@pytest.mark.parametrize("precision", PRECISIONS)
def test_loss_keeps_digits_and_ids_that_half_precision_loses(precision):
    with arithmetic(precision):
        loss = token_loss()
        logits = np.full((1, 2, 30522), 12.0, "float32")
        logits[0, :, 29_999] += [0.001, 0.002]
        found = float(loss(np.array([[29_999, 30_000]]), logits, sample_weight=np.ones((1, 2), "float32")))
    wide = logits.astype("float64")
    wanted = np.log(np.exp(wide[0]).sum(axis=-1)).mean() - (wide[0, 0, 29_999] + wide[0, 1, 30_000]) / 2
    assert found == pytest.approx(wanted, rel=5e-5)  # float32 sums of 30,522 terms; float16 is off by 2e-4


@pytest.mark.any_backend
@pytest.mark.slow
def test_float16_run_scales_its_loss_and_goes_on_to_the_same_bits(records, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def die(line):
        if line["step"] == 6:
            raise Killed

    monkeypatch.setattr(guard, "INITIAL_SCALE", 2.0**24)  # too much for float16: the first steps are left out
    monkeypatch.setattr(guard, "GROWTH_STEPS", 4)
    settings = {"precision": "mixed_float16", "batch_size": 4, "accumulate_batches": 2, "total_steps": 24}
    config = make_tiny_config(**settings | {"log_every_steps": 3, "checkpoint_every_steps": 5, "keep_checkpoints": 9})
    whole = pretrain(config, records, tmp_path / "whole", lambda line: None)
    with pytest.raises(Killed):
        pretrain(config, records, tmp_path / "killed", die)
    (checkpoint,) = tmp_path.glob(".killed*/checkpoints/step-00000005")
    saved = load_file(checkpoint / "state.safetensors")
    log = read_log(whole)
    assert saved["optimizer/guard/scale"] == log[1]["loss_scale"] == 2.0**19  # halved at each of five steps
    lines = []
    killed = pretrain(config, records, tmp_path / "killed", lines.append)
    assert [line["step"] for line in lines] == [6, 9, 10, 12, 15, 18, 20, 21, 24]
    files = [(folder / "model" / "model.safetensors").read_bytes() for folder in (whole, killed)]
    assert files[0] == files[1]
    assert [line["loss"] for line in log] == [line["loss"] for line in read_log(killed)]
    assert log[-1]["step"] == 24 and 5 < log[-1]["skipped_steps"] < 24
    assert log[-1]["loss"] < log[0]["loss"]
    assert keras.config.dtype_policy().name == "float32"


def test_device_without_float16_is_refused_before_training(records, tmp_path, monkeypatch):
    def fail(self, *arguments, **named):
        raise RuntimeError("\"addmm_impl_cpu_\" not implemented for 'Half'\nat line 7")

    monkeypatch.setattr(keras.Model, "train_on_batch", fail)
    with pytest.raises(
        ValueError, match="mixed_float16 needs a device .* gives: \"addmm_impl_cpu_\" .*'Half'. Try mixed_"
    ):
        pretrain(make_tiny_config(precision="mixed_float16"), records, tmp_path / "out")
    assert keras.config.dtype_policy().name == "float32"

"""Blocks computed by one scan over their stacked weights: the same steps and seeds, and nothing of it is saved."""

import keras
import numpy as np
import pytest

from keras_bert_flow.backends.runtime import seed_everything
from keras_bert_flow.models.backbone import Backbone, BertBackbone
from keras_bert_flow.models.pretraining.masked_lm import BertPretrainer
from keras_bert_flow.training.loop.logs import Interrupted
from keras_bert_flow.training.pretraining.pretrain import pretrain
from keras_bert_flow.training.pretraining.pretrainers import compile_pretrainer, make_pretrainer
from tests.oracles.small_bert import SMALL, make_inputs
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records
from tests.training.pretrain_child import arrange

on_jax = pytest.mark.skipif(keras.backend.backend() != "jax", reason="only JAX scans")
LABELS = {"mlm": make_inputs(masks_per_sequence=3)["mask_positions"] + 7, "nsp": np.array([0, 1, 1, 0])}
WEIGHTS = {name: np.ones(label.shape, "float32") for name, label in LABELS.items()}


def make_model(is_scanned, dtype="float32", part=False):
    seed_everything(3)
    sizes = SMALL | {"num_layers": 3, "dropout_rate": 0.5, "attention_dropout_rate": 0.5}
    model = BertPretrainer(BertBackbone(**sizes, dtype=dtype))
    model.backbone.set_rematerialised(part)
    model.backbone.set_scanned(is_scanned)
    model.compile(optimizer=keras.optimizers.SGD(0.5))
    return model


def train_three_steps(model):
    """Return the losses, then all variables by path."""
    inputs = make_inputs(masks_per_sequence=3)
    losses = [model.train_on_batch(inputs, LABELS, sample_weight=WEIGHTS)[0] for _ in range(3)]
    variables = (*model.trainable_variables, *model.non_trainable_variables)
    return losses, {variable.path: np.array(variable.value) for variable in variables}


# Three steps of sums in another order, relative to losses of 4; in bfloat16, the rounding of a gradient between 1 and 2
# at rate 0.5, as in `test_rematerialise`, twice.
@on_jax
@pytest.mark.slow_compiled
@pytest.mark.parametrize(
    ("dtype", "part", "of_losses", "of_weights"),
    [
        ("float32", "nothing", 1e-6, 2e-6),
        ("float32", "blocks", 1e-6, 2e-6),
        ("float32", "attention", 1e-6, 2e-6),
        ("mixed_bfloat16", "nothing", 1e-3, 1.6e-2),
    ],
)
def test_scanned_steps_are_those_of_the_blocks_in_turn(dtype, part, of_losses, of_weights):
    plain, scanned = make_model(False, dtype), make_model(True, dtype, part)
    (losses, variables), (found_losses, found) = train_three_steps(plain), train_three_steps(scanned)
    np.testing.assert_allclose(found_losses, losses, rtol=of_losses)
    assert found.keys() == variables.keys()
    seeds = [path for path in variables if path.endswith("seed_generator_state")]
    assert len(seeds) == 10 and all(int(found[path][1]) == 3 for path in seeds)
    for path, values in variables.items():
        np.testing.assert_allclose(found[path], values, atol=0 if path in seeds else of_weights, err_msg=path)
    if dtype == "float32":
        inputs = make_inputs(masks_per_sequence=3)
        for name, logits in plain.predict(inputs, verbose=0).items():
            np.testing.assert_allclose(scanned.predict(inputs, verbose=0)[name], logits, atol=1e-5)
        measured = [model.evaluate(inputs, LABELS, sample_weight=WEIGHTS, verbose=0) for model in (plain, scanned)]
        np.testing.assert_allclose(*measured, rtol=1e-5)


@on_jax
@pytest.mark.slow_compiled
def test_program_has_one_block_and_config_none_of_it():
    import jax

    def count_products(model):
        inputs, groups = make_inputs(), (model.backbone.trainable_variables, model.backbone.non_trainable_variables)
        state = [[variable.value for variable in group] for group in groups]
        text = str(jax.make_jaxpr(lambda *given: model.backbone.stateless_call(*given, training=True))(*state, inputs))
        return text.count("dot_general"), text.count(" scan[")

    plain, scanned = make_model(False), make_model(True)
    (products, _), (fewer, scans) = count_products(plain), count_products(scanned)
    assert scans == 1 and fewer < products / 2
    assert plain.get_config() == scanned.get_config()
    assert [weight.path for weight in plain.weights] == [weight.path for weight in scanned.weights]


@on_jax
@pytest.mark.slow_compiled
def test_configuration_reaches_the_backbone():
    for wanted in (True, False):
        config = make_tiny_config({"num_layers": 2}, scan_layers=wanted)
        model = make_pretrainer(config.model, 50)
        compile_pretrainer(model, config)
        assert model.backbone.is_scanned is wanted


@on_jax
@pytest.mark.slow_compiled
def test_stopped_run_is_resumed_with_the_same_bits(tmp_path):
    write_tiny_records(tmp_path / "records")
    intervals = {"log_every_steps": 3, "evaluate_every_steps": 6, "checkpoint_every_steps": 2}
    config = make_tiny_config({"num_layers": 2}, scan_layers=True, total_steps=6, warmup_steps=2, **intervals)

    def run(name):
        pretrain(config, tmp_path / "records", tmp_path / name, lambda line: None)
        return (tmp_path / name / "model" / "model.safetensors").read_bytes()

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Interrupted):
        arrange("step:3", patch.setattr)
        run("resumed")
    assert run("resumed") == run("whole")


@on_jax
@pytest.mark.first_form_compiled
@pytest.mark.parametrize("options", [{"num_groups": 1}, {"num_groups": 2, "sharing": "attention"}])
def test_blocks_that_share_weights_are_refused(options):
    backbone = Backbone("albert", **SMALL | options)
    with pytest.raises(ValueError, match="`pretraining.scan_layers` needs blocks that .* share none. Received: Albert"):
        backbone.set_scanned()
    assert not backbone.is_scanned


@pytest.mark.any_backend
@pytest.mark.skipif(keras.backend.backend() == "jax", reason="of the other backends")
def test_other_backends_are_refused():
    with pytest.raises(ValueError, match=r"`pretraining.scan_layers` needs jax. Received: backend="):
        BertBackbone(**SMALL).set_scanned()

"""Blocks computed again in the backward pass: the same masks, the same steps, and seeds that move on once."""

import keras
import numpy as np
import pytest

from keras_bert_flow.backends.runtime import seed_everything
from keras_bert_flow.models.backbone import BertBackbone
from keras_bert_flow.models.pretraining.masked_lm import BertPretrainer
from keras_bert_flow.training.pretraining.pretrainers import compile_pretrainer, make_pretrainer
from tests.oracles.small_bert import SMALL, make_inputs
from tests.oracles.tiny_records import make_tiny_config


def train_three_steps(part, dtype="float32"):
    seed_everything(3)
    backbone = BertBackbone(**SMALL, dropout_rate=0.5, attention_dropout_rate=0.5, dtype=dtype)
    model = BertPretrainer(backbone)
    backbone.set_rematerialised(part)
    model.compile(optimizer=keras.optimizers.SGD(0.5))
    inputs = make_inputs(masks_per_sequence=3)
    labels = {"mlm": inputs["mask_positions"] + 7, "nsp": np.array([0, 1, 1, 0])}
    weights = {name: np.ones(label.shape, "float32") for name, label in labels.items()}
    for _ in range(3):
        model.train_on_batch(inputs, labels, sample_weight=weights)
    variables = (*model.trainable_variables, *model.non_trainable_variables)
    return {variable.path: keras.ops.convert_to_numpy(variable.value) for variable in variables}


# bfloat16 rounds at other places where a compiler joins other operations: two units in the last place, 1/128, of a
# gradient between 1 and 2, at rate 0.5.
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [("float32", 2e-6), pytest.param("mixed_bfloat16", 8e-3, marks=pytest.mark.any_backend)],
)
@pytest.mark.parametrize("part", ["blocks", "attention"])
@pytest.mark.slow_compiled
def test_three_steps_are_the_same_with_dropout(part, dtype, tolerance):
    kept, again = train_three_steps(False, dtype), train_three_steps(part, dtype)
    assert kept.keys() == again.keys()
    seeds = [path for path in kept if path.endswith("seed_generator_state")]
    draws = [int(again[path][1]) for path in seeds]
    assert len(draws) == 7 and min(draws) == 3  # attention on packed tokens draws for each group of rows
    for path, values in kept.items():
        np.testing.assert_allclose(again[path], values, atol=tolerance, err_msg=path)


@pytest.mark.slow_compiled
def test_configuration_reaches_every_block():
    for wanted, found in {
        True: (True, False),
        False: (False, False),
        "blocks": (True, False),
        "nothing": (False, False),
        "attention": (False, True),
    }.items():
        config = make_tiny_config({"num_layers": 3}, rematerialise=wanted)
        assert config.pretraining.rematerialise == ("attention" if found[1] else found[0])  # as keys have it
        model = make_pretrainer(config.model, 50)
        compile_pretrainer(model, config)
        blocks = [model.backbone.get_layer(f"encoder_block_{index}") for index in range(3)]
        assert [(block.is_rematerialised, block.attention.is_rematerialised) for block in blocks] == [found] * 3


@pytest.mark.any_backend
def test_unknown_part_is_refused():
    with pytest.raises(ValueError, match=r"one of nothing, blocks, attention\. Received: part='all'"):
        BertBackbone(**SMALL).set_rematerialised("all")
    with pytest.raises(ValueError, match="rematerialise"):
        make_tiny_config(rematerialise="all")


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="jax lists what it keeps")
def test_jax_keeps_less_for_the_backward_pass(capsys):
    import jax

    counts = []
    for part in ("nothing", "attention", "blocks"):
        backbone = BertBackbone(**SMALL)
        backbone.set_rematerialised(part)
        inputs = make_inputs()
        groups = (backbone.trainable_variables, backbone.non_trainable_variables)
        weights, seeds = ([variable.value for variable in group] for group in groups)

        def sum_outputs(weights, backbone=backbone, seeds=seeds, inputs=inputs):
            outputs, _ = backbone.stateless_call(weights, seeds, inputs, training=True)
            return outputs["sequence_output"].sum()

        jax.ad_checkpoint.print_saved_residuals(sum_outputs, weights)
        kept = [line for line in capsys.readouterr().out.splitlines() if "from the argument" not in line]
        counts.append(len(kept))
    assert counts[2] < counts[0] / 2 and counts[2] < counts[1] < counts[0], counts

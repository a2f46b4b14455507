"""The encoder: sizes, numbers, names, masks."""

import keras
import numpy as np
import pytest

from keras_bert_flow.layers.embeddings import BertEmbeddings
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.backbone import Backbone, BertBackbone
from keras_bert_flow.models.pretraining.masked_lm import BertPretrainer
from tests.oracles import numpy_bert
from tests.oracles.small_bert import LENGTHS, SMALL, make_inputs

PARAMETERS = {
    "mini": 11_170_560,
    "small": 28_763_648,
    "medium": 41_373_184,
    "base": 109_482_240,
    "large": 335_141_888,
}
QUICK = ("mini", "small")  # the tiny one: tests/conversion/test_families.py


@pytest.mark.first_form
@pytest.mark.parametrize(
    "size", [size if size in QUICK else pytest.param(size, marks=pytest.mark.slow) for size in PARAMETERS]
)
@pytest.mark.any_backend
def test_backbone_has_published_number_of_parameters(size):
    backbone = BertBackbone.from_size(size, vocabulary_size=30522)
    assert backbone.count_params() == PARAMETERS[size]
    if size == "base":
        assert BertPretrainer(backbone).count_params() == 110_106_428


def test_backbone_refuses_unknown_size():
    with pytest.raises(ValueError, match="one of tiny, mini, small, medium, base, large. Received: size='huge'"):
        BertBackbone.from_size("huge", vocabulary_size=10)


@pytest.mark.first_form_compiled
@pytest.mark.parametrize("hidden_act", ["gelu", "gelu_tanh"])
def test_backbone_agrees_with_numpy(hidden_act):
    backbone = BertBackbone(**SMALL, hidden_act=hidden_act)
    numpy_bert.randomise_weights(backbone, seed=3)
    inputs = make_inputs()
    states, pooled = numpy_bert.forward(numpy_bert.weights_of(backbone), inputs, 2, 3, hidden_act)
    # float32 keeps 6e-8 of values up to 4, through sums of up to 40 terms in 2 blocks: a few times 1e-6. The two GELUs
    # are 5e-4 apart.
    outputs = backbone.predict(inputs, verbose=0)
    np.testing.assert_allclose(outputs["sequence_output"], states[-1], atol=1e-5)
    np.testing.assert_allclose(outputs["pooled_output"], pooled, atol=1e-5)
    hidden_states = backbone.make_hidden_states_model().predict(inputs, verbose=0)
    assert len(hidden_states) == 3
    for ours, theirs in zip(hidden_states, states, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-5)


def test_backbone_ignores_content_of_padding():
    backbone = BertBackbone(**SMALL)
    numpy_bert.randomise_weights(backbone, seed=4)
    inputs = make_inputs(seed=0)
    other = make_inputs(seed=9)
    real = inputs["padding_mask"].astype(bool)
    changed = {name: np.where(real, inputs[name], other[name]).astype("int32") for name in inputs}
    before, after = (backbone.predict(x, verbose=0)["sequence_output"] for x in (inputs, changed))
    assert np.abs(before - after)[~real].max() > 0.1  # the padding did change
    np.testing.assert_array_equal(before[real], after[real])


def test_backbone_row_does_not_depend_on_padded_length():
    backbone = BertBackbone(**SMALL)
    numpy_bert.randomise_weights(backbone, seed=5)
    inputs = make_inputs()
    length = LENGTHS[1]
    short = {name: value[1:2, :length] for name, value in inputs.items()}
    ours = backbone.predict(inputs, verbose=0)["sequence_output"][1, :length]
    # Products of other shapes sum in another order: a few float32 roundings of values up to 4.
    np.testing.assert_allclose(backbone.predict(short, verbose=0)["sequence_output"][0], ours, atol=1e-5)


def test_backbone_config_round_trip():
    backbone = BertBackbone(**SMALL, hidden_act="gelu_tanh", num_segments=3, dropout_rate=0.2, dtype="mixed_bfloat16")
    twin = BertBackbone.from_config(backbone.get_config())
    assert twin.get_config() == backbone.get_config()
    assert twin.compute_dtype == "bfloat16"
    saved = keras.saving.serialize_keras_object(backbone)
    assert keras.saving.deserialize_keras_object(saved).get_config() == backbone.get_config()


def test_backbone_is_of_a_known_family():
    assert Backbone(**SMALL).get_config() == Backbone("bert", **SMALL).get_config()
    with pytest.raises(ValueError, match="A family must be one of .*bert.*Received: 'gpt'"):
        Backbone("gpt", **SMALL)
    with pytest.raises(ValueError, match="A BertBackbone must be of the family bert. Received: family='gpt'"):
        BertBackbone("gpt", **SMALL)


def test_layers_are_made_of_shapes_alone():
    layer = BertEmbeddings(EncoderShape(**SMALL))
    assert BertEmbeddings.from_config(layer.get_config()).shape == layer.shape
    for kind in ("os:system", "keras_bert_flow.results.artifacts:Path"):
        with pytest.raises(ValueError, match=f"must be a class of shapes of this package. Received: '{kind}'"):
            BertEmbeddings({"kind": kind})


def test_backbone_takes_global_policy_when_none_is_given():
    assert BertBackbone(**SMALL).dtype_policy.name == keras.config.dtype_policy().name
    assert BertBackbone(**SMALL, dtype="mixed_bfloat16").dtype_policy.name == "mixed_bfloat16"


def test_backbone_runs_norms_in_float32_under_bfloat16():
    backbone = BertBackbone(**SMALL, dtype="mixed_bfloat16")
    layer_norm = backbone.get_layer("encoder_block_0").output_layer_norm
    # The mean of 24 values near 1000 needs more than the 8 bits of bfloat16, where they are 4 apart.
    row = (1000 + np.arange(24) * 8).astype("float32")[None, None]
    outputs = keras.ops.convert_to_numpy(keras.ops.cast(layer_norm(row), "float32"))
    # Rounding the result to bfloat16 costs 2^-8 of values up to 1.7.
    np.testing.assert_allclose(outputs[0, 0], (row[0, 0] - row.mean()) / row.std(), atol=0.008)


VARIABLE_PATHS = [
    "token_embedding/embeddings",
    "embeddings/position_embedding",
    "embeddings/segment_embedding",
    "embeddings/layer_norm/gamma",
    "embeddings/layer_norm/beta",
    "encoder_block_0/attention/query_key_value/kernel",
    "encoder_block_0/attention/query_key_value/bias",
    "encoder_block_0/attention/output/kernel",
    "encoder_block_0/attention/output/bias",
    "encoder_block_0/attention_layer_norm/gamma",
    "encoder_block_0/attention_layer_norm/beta",
    "encoder_block_0/intermediate/kernel",
    "encoder_block_0/intermediate/bias",
    "encoder_block_0/output/kernel",
    "encoder_block_0/output/bias",
    "encoder_block_0/output_layer_norm/gamma",
    "encoder_block_0/output_layer_norm/beta",
    "pooler/dense/kernel",
    "pooler/dense/bias",
    "mlm_transform/dense/kernel",
    "mlm_transform/dense/bias",
    "mlm_transform/layer_norm/gamma",
    "mlm_transform/layer_norm/beta",
    "mlm/bias",
    "nsp/kernel",
    "nsp/bias",
]
SEED_PATHS = [
    "embeddings/dropout/seed_generator/seed_generator_state",
    "encoder_block_0/attention/dropout/seed_generator/seed_generator_state",
    "encoder_block_0/attention_dropout/seed_generator/seed_generator_state",
    "encoder_block_0/output_dropout/seed_generator/seed_generator_state",
]


def test_variable_paths_are_pinned():
    # Checkpoints, sharding rules and weight decay go by these names: changing one breaks what users have saved.
    for _ in range(2):  # also the second time in a process
        model = BertPretrainer(BertBackbone(**SMALL | {"num_layers": 1}))
        assert [variable.path for variable in model.weights] == VARIABLE_PATHS
        paths = [variable.path for variable in model.variables]
        assert sorted(set(paths) - set(VARIABLE_PATHS)) == sorted(SEED_PATHS)
        assert len(paths) == len(set(paths))

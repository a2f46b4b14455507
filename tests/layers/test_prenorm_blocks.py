"""Parts of modern blocks: norms before the sublayers, gates, RMS norms, no biases; and what every block can be told."""

from dataclasses import dataclass

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.distribution.jax_cluster import MODEL
from keras_bert_flow.layers.dense import RmsNorm, gate, get_activation
from keras_bert_flow.layers.encoder import EncoderBlock
from keras_bert_flow.layers.heads import PredictionHead
from keras_bert_flow.layers.patterns import Rotary, Window
from keras_bert_flow.layers.prenorm import PreNormBlock
from keras_bert_flow.layers.shape import EncoderShape, check_scan
from keras_bert_flow.models.families.modernbert import ModernBertShape
from keras_bert_flow.models.sizes import check_start, count_flops
from keras_bert_flow.training.distillation import copy_layers
from tests.contracts import randomise, run_layer_test
from tests.oracles.family_steps import count_by_torch, find_cuts, train_twice
from tests.oracles.small_bert import SMALL, make_inputs
from tests.oracles.task_models import call

RNG = np.random.default_rng(2)
SHAPE = ModernBertShape(50, 2, 3, 24, 42, max_positions=16, local_attention=4, global_every=2)
KINDS = Window(2), Rotary(100.0)
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]], "int32")
RATES = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
DROPPED = {"dropout_rate": 0.3, "attention_dropout_rate": 0.3}


@dataclass(frozen=True)
class LlamaShape(EncoderShape):
    """Pre-norm with RMS norms, SwiGLU and biases in the attention alone."""

    hidden_act: str = "silu"
    feed_forward_bias: bool = False
    norm_bias: bool = False
    normalization: str = "rms_norm"
    is_gated = True
    has_embedding_norm = False
    has_final_norm = True


@pytest.fixture(autouse=True)
def other_shapes(monkeypatch):
    monkeypatch.setattr("keras_bert_flow.layers.shape.PACKAGE", "")  # whose classes alone are deserialised


def make_values(*shape):
    return RNG.normal(size=shape).astype("float32")


def make_backbone(**settings):
    sizes = {"num_layers": 3, "local_attention": 4, "use_pooler": False}
    return randomise(kbf.Backbone("modernbert", **SMALL | sizes | settings))


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (lambda: RmsNorm(1e-5, name="rms"), (make_values(3, 5, 9),)),
        (lambda: PredictionHead(SHAPE, name="head"), (make_values(3, 5, 24),)),
        (lambda: PreNormBlock(SHAPE, *KINDS, name="block"), (make_values(3, 5, 24), MASK)),
        (lambda: PreNormBlock(SHAPE, *KINDS, False, name="lowest"), (make_values(3, 5, 24), MASK)),
        (lambda: PreNormBlock(LlamaShape(50, 2, 3, 24, 42), name="llama"), (make_values(3, 5, 24), MASK)),
        (lambda: EncoderBlock(SHAPE, None, *KINDS, name="post_norm"), (make_values(3, 5, 24), MASK)),
    ],
    ids=lambda value: value().name if callable(value) else "",
)
@pytest.mark.slow_compiled
def test_layer_keeps_contract(layer, inputs):
    run_layer_test(layer(), *inputs)


@pytest.mark.any_backend
@pytest.mark.parametrize("groups", [1, 3, 6])
def test_gate_multiplies_the_activation_of_the_first_values_of_each_group(groups):
    first, second = make_values(2, 4, 6), make_values(2, 4, 6)
    parts = [values.reshape(2, 4, groups, -1) for values in (first, second)]
    fused = np.concatenate(parts, axis=-1).reshape(2, 4, 12)
    found = gate(keras.ops.convert_to_tensor(fused), groups, get_activation("silu"))
    np.testing.assert_allclose(keras.ops.convert_to_numpy(found), first / (1 + np.exp(-first)) * second, atol=1e-6)


ON_TORCH = pytest.mark.skipif(keras.backend.backend() != "torch", reason="unpadded on PyTorch alone")


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        pytest.param({"part": "blocks"}, DROPPED, marks=pytest.mark.slow_compiled),
        pytest.param({"part": "attention"}, DROPPED, marks=pytest.mark.slow_compiled),
        pytest.param({"is_unpadded": False}, RATES, marks=ON_TORCH),  # dropout draws for each group of rows
    ],
    ids=lambda value: next(iter(value)),
)
def test_steps_are_the_same_however_they_are_computed(settings, rates):
    # For the embeddings; and for probabilities, attention and feed-forward of three blocks.
    dropouts = 10 if rates["dropout_rate"] else 0
    plain, other = (train_twice(lambda: make_backbone(**rates), dropouts, **how) for how in ({}, settings))
    for path, values in plain.items():
        np.testing.assert_allclose(other[path], values, atol=2e-6, err_msg=path)  # sums in another order


@pytest.mark.any_backend
def test_layers_that_differ_are_not_scanned():
    for every in (1, 3):
        with pytest.raises(ValueError, match="differ in nothing but their weights"):
            check_scan(ModernBertShape(50, 3, 3, 24, 42, global_every=every), "jax")


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="the counter is PyTorch's")
def test_count_of_operations_is_that_of_torch():
    backbone = make_backbone(**RATES)
    flops = count_flops(backbone.shape, 16, 5, use_pooler=False)
    assert (3 * flops.forward, 3 * flops.training) == count_by_torch(kbf.MaskedLM(backbone), 16, 5)


@pytest.mark.any_backend
def test_layout_cuts_heads_and_both_halves_of_a_gate():
    model = kbf.MaskedLM(make_backbone(num_layers=2, num_heads=2))
    shape = model.backbone.shape
    assert shape.gate_groups == 2  # so that half of the columns are both halves of half of the units
    found = find_cuts(model, "modernbert")
    columns, rows = (None, MODEL), (MODEL, None)
    block = {"attention/query_key_value": columns, "attention/output": rows, "intermediate": columns, "output": rows}
    expected = {f"encoder_block_{index}/{name}/kernel": axes for index in (0, 1) for name, axes in block.items()}
    assert found == expected | {"token_embedding/embeddings": rows, "mlm/bias": (MODEL,)}


@pytest.mark.slow
def test_all_products_are_quantised():
    model = kbf.MaskedLM(make_backbone(num_layers=1))
    inputs = make_inputs(masks_per_sequence=3)
    before = call(model, inputs)["mlm"]
    model.quantize("int8")
    quantised = [layer for layer in model._flatten_layers() if layer.quantization_mode == "int8"]
    # Token embeddings and the transform of the head; both products of attention and of the feed-forward.
    assert len(quantised) == 2 + 4
    assert 0 < np.abs(call(model, inputs)["mlm"] - before).max() < 0.3


@pytest.mark.any_backend
def test_weights_of_norms_are_not_decayed():
    from keras_bert_flow.models.defaults import list_undecayed

    model = kbf.MaskedLM(make_backbone(num_layers=2))
    model.compile()
    undecayed = [variable.path for variable in model.weights if not model.optimizer._use_weight_decay(variable)]
    norms = {f"{name}/gamma" for name in ("embeddings/layer_norm", "final_norm", "mlm_transform/layer_norm")}
    norms |= {f"encoder_block_{place}/feed_forward_norm/gamma" for place in (0, 1)}
    assert {*undecayed} == norms | {"encoder_block_1/attention_norm/gamma", "mlm/bias"}
    assert list_undecayed(model.optimizer, model.weights) == []


@pytest.mark.any_backend
def test_final_norm_is_of_the_last_block_and_of_the_last_hidden_state():
    backbone = make_backbone()
    depths = backbone.find_depths()
    assert depths["final_norm/gamma"] == 3 and len(depths) == len(backbone.weights)
    inputs = make_inputs()
    states = backbone.make_hidden_states_model().predict(inputs, verbose=0)
    np.testing.assert_allclose(states[-1], call(backbone, inputs)["sequence_output"], atol=1e-5)
    backbone.freeze_lowest(3)
    assert backbone.trainable_weights == []


@pytest.mark.any_backend
def test_student_starts_from_layers_of_its_teacher():
    teacher, student = kbf.MaskedLM(make_backbone(num_layers=4)), kbf.MaskedLM(make_backbone(num_layers=2))
    copy_layers(teacher, student)
    for ours, theirs in (("encoder_block_1", "encoder_block_2"), ("final_norm", "final_norm")):
        pairs = zip(student.backbone.get_layer(ours).weights, teacher.backbone.get_layer(theirs).weights, strict=True)
        for one, other in pairs:
            np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (one, other)))
    bert = kbf.MaskedLM(kbf.Backbone("distilbert", **SMALL))
    with pytest.raises(ValueError, match="as wide, and no deeper. Received: attention_bias=True, not False"):
        copy_layers(teacher, bert)
    with pytest.raises(ValueError, match="norm_bias=True, not False.*start to random"):
        check_start(bert.backbone.shape, teacher.backbone.shape, with_blocks=False)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"global_every": 0}, "`global_every` must be at least 1. Received: global_every=0. Try 3."),
        ({"local_attention": 0}, "`local_attention` must be at least 1. Received: local_attention=0. Try 128."),
        ({"num_heads": 8}, "Rotated heads must have an even width. Received: hidden_dim=24, num_heads=8. Try "),
        ({"local_theta": -1.0}, "`theta` must be above 0. Received: theta=-1.0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        kbf.Backbone("modernbert", **SMALL | settings)

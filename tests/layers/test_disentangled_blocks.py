"""Parts of DeBERTa: its layers, how its steps are computed, what of it is counted, sharded, trained and quantised."""

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.distribution.jax_cluster import MODEL
from keras_bert_flow.layers.disentangled import Convolution, DisentangledBlock, DisentangledEmbeddings
from keras_bert_flow.layers.patterns import FULL, Disentangled
from keras_bert_flow.layers.shape import check_scan
from keras_bert_flow.models.families.deberta import DebertaShape
from keras_bert_flow.models.sizes import count_flops
from keras_bert_flow.training.distillation import copy_layers
from tests.contracts import randomise, run_layer_test
from tests.oracles.family_steps import count_by_torch, find_cuts, train_twice
from tests.oracles.small_bert import SMALL, make_inputs
from tests.oracles.task_models import call

RNG = np.random.default_rng(2)
OPTIONS = {"position_buckets": 4, "convolution_width": 3}
SHAPE = DebertaShape(50, 2, 3, 24, 42, max_positions=16, embedding_dim=9, **OPTIONS)
MASK = np.array([[1, 1, 1, 2, 2], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]], "int32")
RATES = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
DROPPED = {"dropout_rate": 0.3, "attention_dropout_rate": 0.3}
ON_TORCH = pytest.mark.skipif(keras.backend.backend() != "torch", reason="unpadded on PyTorch alone")


def make_values(*shape):
    return RNG.normal(size=shape).astype("float32")


def make_backbone(**settings):
    return randomise(kbf.Backbone("deberta-v2", **SMALL | OPTIONS | {"use_pooler": False} | settings))


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (lambda: DisentangledEmbeddings(SHAPE, name="embeddings"), (make_values(3, 5, 9), MASK * 0, MASK)),
        (lambda: Convolution(SHAPE, name="convolution"), (make_values(3, 5, 24), make_values(3, 5, 24), MASK)),
    ],
    ids=lambda value: value().name if callable(value) else "",
)
@pytest.mark.slow_compiled
def test_layer_keeps_contract(layer, inputs):
    run_layer_test(layer(), *inputs)


@pytest.mark.any_backend
def test_convolution_is_that_of_numpy():
    layer, hidden, inputs = Convolution(SHAPE, name="convolution"), make_values(3, 5, 24), make_values(3, 5, 24)
    layer.build(hidden.shape)
    for weight in layer.weights:
        weight.assign(make_values(*weight.shape))
    kernel, bias, scale, shift = (keras.ops.convert_to_numpy(weight).astype("float64") for weight in layer.weights)
    expected = np.zeros((3, 5, 24))
    for row, place in np.argwhere(MASK):
        near = [
            other for other in (place - 1, place, place + 1) if 0 <= other < 5 and MASK[row, other] == MASK[row, place]
        ]
        added = bias + sum(inputs[row, other].astype("float64") @ kernel[other - place + 1] for other in near)
        total = hidden[row, place] + np.tanh(added)
        expected[row, place] = scale * (total - total.mean()) / np.sqrt(total.var() + 1e-7) + shift
    found = keras.ops.convert_to_numpy(layer(hidden, inputs, MASK))
    np.testing.assert_allclose(found[MASK > 0], expected[MASK > 0], atol=1e-4)


@pytest.mark.any_backend
def test_block_comes_back_from_its_config():
    block = DisentangledBlock(SHAPE, FULL, Disentangled(4, 16), True, name="block")
    inputs, table = make_values(3, 5, 24), make_values(8, 24)
    expected = keras.ops.convert_to_numpy(block(inputs, MASK, relative=table))
    twin = DisentangledBlock.from_config(block.get_config())
    twin.build(inputs.shape)
    twin.set_weights(block.get_weights())
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(twin(inputs, MASK, relative=table)), expected)


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
    # For the embeddings, the convolution; and relative positions, probabilities, attention, feed-forward of two blocks.
    dropouts = 10 if rates["dropout_rate"] else 0
    plain, other = (train_twice(lambda: make_backbone(**rates), dropouts, **how) for how in ({}, settings))
    for path, values in plain.items():
        np.testing.assert_allclose(other[path], values, atol=2e-6, err_msg=path)  # sums in another order


@pytest.mark.any_backend
def test_blocks_with_relative_positions_are_not_scanned():
    with pytest.raises(ValueError, match="differ in nothing but their weights"):
        check_scan(SHAPE, "jax")


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="the counter is PyTorch's")
def test_count_of_operations_is_that_of_torch():
    backbone = make_backbone(**RATES)
    flops = count_flops(backbone.shape, 16, 5, use_pooler=False)
    table = 2 * 2 * 8 * 24 * 72  # both layers project 8 rows once per batch, which is not counted
    assert 3 * flops.forward + table == count_by_torch(kbf.MaskedLM(backbone), 16, 5)[0]


@pytest.mark.any_backend
def test_layout_cuts_heads():
    model = kbf.MaskedLM(make_backbone(num_heads=2, shares_projections=False))
    columns, rows = (None, MODEL), (MODEL, None)
    block = {"attention/query_key_value": columns, "attention/output": rows, "intermediate": columns, "output": rows}
    block |= {"attention/position_query": columns, "attention/position_key": columns}
    cut = ("attention/query_key_value", "attention/position_query", "attention/position_key", "intermediate")
    expected = {f"encoder_block_{index}/{name}/kernel": axes for index in (0, 1) for name, axes in block.items()}
    expected |= {f"encoder_block_{index}/{name}/bias": (MODEL,) for index in (0, 1) for name in cut}
    assert find_cuts(model, "deberta-v2") == expected | {"token_embedding/embeddings": rows, "mlm/bias": (MODEL,)}


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
def test_relative_positions_are_of_the_embeddings_and_no_matrix():
    backbone = make_backbone()
    depths = backbone.find_depths()
    assert depths["relative_positions/table"] == 0 and len(depths) == len(backbone.weights)
    assert "relative_positions/table" not in backbone.list_matrices()
    backbone.freeze_lowest(2)
    assert backbone.trainable_weights == []


@pytest.mark.any_backend
def test_student_starts_from_layers_of_its_teacher():
    teacher, student = kbf.MaskedLM(make_backbone(num_layers=4)), kbf.MaskedLM(randomise(make_backbone(), 2))
    copy_layers(teacher, student)
    for ours, theirs in (("encoder_block_1", "encoder_block_2"), ("relative_positions", "relative_positions")):
        pairs = zip(student.backbone.get_layer(ours).weights, teacher.backbone.get_layer(theirs).weights, strict=True)
        for one, other in pairs:
            np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (one, other)))
    other = kbf.MaskedLM(make_backbone(position_terms="c2p"))
    with pytest.raises(ValueError, match="position_terms"):
        copy_layers(teacher, other)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"position_terms": "p2c|c2p"}, "`position_terms` must be one of c2p|p2c, c2p, p2c, or empty. Received: "),
        ({"position_buckets": -1}, "`position_buckets` must be at least 0. Received: position_buckets=-1. Try 0."),
        ({"convolution_width": 4}, "`convolution_width` must be odd"),
        ({"convolution_act": "mish"}, "`convolution_act` must be one of gelu, "),
        ({"max_distance": 3}, "`max_distance` must be above half of `num_buckets` and 1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message.replace("|", r"\|")):
        kbf.Backbone("deberta-v2", **SMALL | OPTIONS | settings)

"""Layers of MobileBERT: neighbours within rows and texts, and what every family's blocks can be told."""

from dataclasses import replace

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.distribution.jax_cluster import MODEL
from keras_bert_flow.layers.mobilebert import (
    BottleneckBlock,
    FeedForward,
    NoNorm,
    TrigramEmbeddings,
    join_neighbours,
)
from keras_bert_flow.models.families.mobilebert import MobileBertShape
from keras_bert_flow.models.sizes import check_start, count_flops
from keras_bert_flow.training.distillation import copy_layers
from keras_bert_flow.training.fit import check_precisions, check_trained_part
from tests.contracts import randomise, run_layer_test
from tests.oracles.family_steps import count_by_torch, find_cuts, train_twice
from tests.oracles.small_bert import SMALL, make_inputs
from tests.oracles.task_models import call

RNG = np.random.default_rng(2)
SHAPE = MobileBertShape(50, 2, 3, 24, 20, max_positions=7, bottleneck_dim=9, embedding_dim=5, num_feed_forwards=2)
INVERTED = {"normalization": "layer_norm", "has_query_bottleneck": False, "num_feed_forwards": 1, "bottleneck_dim": 36}
WIDE = replace(SHAPE, **INVERTED)
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0]], "int32")
RATES = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}


def make_values(*shape):
    return RNG.normal(size=shape).astype("float32")


def make_backbone(**settings):
    return randomise(kbf.Backbone("mobilebert", **SMALL | {"use_pooler": False} | settings))


@pytest.mark.parametrize(
    ("layer", "inputs"),
    [
        (lambda: NoNorm(name="norm"), (make_values(3, 5, 9),)),
        (lambda: TrigramEmbeddings(SHAPE, name="embeddings"), (make_values(3, 5, 5), MASK)),
        (lambda: FeedForward(SHAPE, name="feed_forward"), (make_values(3, 5, 9),)),
        (lambda: BottleneckBlock(SHAPE, name="block"), (make_values(3, 5, 24), MASK)),
        (lambda: TrigramEmbeddings(WIDE, name="wide_embeddings"), (make_values(3, 5, 5), MASK)),
        (lambda: FeedForward(WIDE, 1e-5, name="wide_feed_forward"), (make_values(3, 5, 36),)),
        (lambda: BottleneckBlock(WIDE, name="wide_block"), (make_values(3, 5, 24), MASK)),
    ],
    ids=lambda value: value().name if callable(value) else "",
)
@pytest.mark.slow_compiled
def test_layer_keeps_contract(layer, inputs):
    run_layer_test(layer(), *inputs)


def test_neighbours_end_with_the_row_and_the_text():
    tokens = np.arange(1.0, 7.0, dtype="float32").reshape(1, 6, 1)  # each value is its place, from 1
    for mask, after, before in (
        (None, [2, 3, 4, 5, 6, 0], [0, 1, 2, 3, 4, 5]),
        ([1, 1, 1, 1, 0, 0], [2, 3, 4, 5, 6, 0], [0, 1, 2, 3, 4, 5]),  # padding is a neighbour too
        ([1, 1, 2, 2, 3, 0], [2, 0, 4, 0, 6, 0], [0, 1, 0, 3, 0, 5]),
    ):
        mask = None if mask is None else keras.ops.convert_to_tensor(np.array([mask], "int32"))
        found = keras.ops.convert_to_numpy(join_neighbours(keras.ops.convert_to_tensor(tokens), mask))[0]
        np.testing.assert_array_equal(found.T, [after, tokens[0, :, 0], before])


@pytest.mark.slow_compiled
def test_packed_row_is_its_texts_without_padding():
    backbone, lengths = make_backbone(), (5, 1, 3)
    ids, segments = RNG.integers(0, 50, 9), RNG.integers(0, 2, 9)
    numbers = np.repeat([1, 2, 3], lengths)
    packed = {"token_ids": ids, "segment_ids": segments, "padding_mask": numbers}
    found = call(backbone, {name: values[None].astype("int32") for name, values in packed.items()})
    for number in (1, 2, 3):
        alone = {name: values[None, numbers == number].astype("int32") for name, values in packed.items()}
        alone["padding_mask"] = np.ones_like(alone["token_ids"])
        expected = call(backbone, alone)["sequence_output"][0]
        np.testing.assert_allclose(found["sequence_output"][0, numbers == number], expected, atol=1e-5)


DROPPED = {"dropout_rate": 0.3, "attention_dropout_rate": 0.3}
ON_JAX = pytest.mark.skipif(keras.backend.backend() != "jax", reason="only JAX scans")
ON_TORCH = pytest.mark.skipif(keras.backend.backend() != "torch", reason="unpadded on PyTorch alone")


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        pytest.param({"part": "blocks"}, DROPPED, marks=pytest.mark.slow_compiled),
        pytest.param({"part": "attention"}, DROPPED, marks=pytest.mark.slow_compiled),
        pytest.param({"is_scanned": True}, DROPPED, marks=[ON_JAX, pytest.mark.slow_compiled]),
        pytest.param({"is_unpadded": False}, RATES, marks=ON_TORCH),  # dropout draws for each group of rows
    ],
    ids=lambda value: next(iter(value)),
)
def test_steps_are_the_same_however_they_are_computed(settings, rates):
    # For the embeddings, and for attention and outputs of both blocks.
    dropouts = 5 if rates["dropout_rate"] else 0
    plain, other = (train_twice(lambda: make_backbone(**rates), dropouts, **how) for how in ({}, settings))
    for path, values in plain.items():
        np.testing.assert_allclose(other[path], values, atol=2e-6, err_msg=path)  # sums in another order


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="the counter is PyTorch's")
@pytest.mark.parametrize("further", [{}, {"has_dense_pooler": False}, INVERTED], ids=["dense", "no_pooler", "inverted"])
def test_count_of_operations_is_that_of_torch(further):
    settings = {"bottleneck_dim": 9, "num_feed_forwards": 3, "use_pooler": True}
    backbone = make_backbone(**RATES, **settings | further)
    flops = count_flops(backbone.shape, 16, 5)
    assert (3 * flops.forward, 3 * flops.training) == count_by_torch(kbf.BertPretrainer(backbone), 16, 5)


@pytest.mark.any_backend
def test_layout_cuts_heads_and_every_feed_forward():
    model = kbf.MaskedLM(make_backbone(num_heads=2, bottleneck_dim=8, num_feed_forwards=2))
    found = find_cuts(model, "mobilebert")
    columns, rows, bias = (None, MODEL), (MODEL, None), (MODEL,)
    block = {f"attention/query_key_value/{part}/kernel": columns for part in ("query", "key", "value")}
    block |= {f"attention/query_key_value/{part}/bias": bias for part in ("query", "key", "value")}
    block |= {"attention/output/kernel": rows}
    for number in (0, 1):
        name = f"feed_forward_{number}/"
        block |= {name + "intermediate/kernel": columns, name + "intermediate/bias": bias, name + "output/kernel": rows}
    expected = {f"encoder_block_{index}/{name}": axes for index in (0, 1) for name, axes in block.items()}
    assert found == expected | {"token_embedding/embeddings": rows, "mlm/bias": bias}


@pytest.mark.slow
def test_all_products_are_quantised():
    model = kbf.MaskedLM(make_backbone(num_layers=1))
    inputs = make_inputs(masks_per_sequence=3)
    before = call(model, inputs)["mlm"]
    model.quantize("int8")
    quantised = [layer for layer in model._flatten_layers() if layer.quantization_mode == "int8"]
    # Token embeddings, their projection, the transform and the extension of the head; bottlenecks, attention, and twice
    # each of four feed-forwards.
    assert len(quantised) == 4 + 3 + 4 + 8
    assert 0 < np.abs(call(model, inputs)["mlm"] - before).max() < 0.3


@pytest.mark.any_backend
def test_student_starts_from_layers_of_its_teacher():
    teacher, student = kbf.MaskedLM(make_backbone(num_layers=4)), kbf.MaskedLM(make_backbone())
    copy_layers(teacher, student)
    for ours, theirs in (("encoder_block_1", "encoder_block_2"), ("embeddings", "embeddings")):
        pairs = zip(student.backbone.get_layer(ours).weights, teacher.backbone.get_layer(theirs).weights, strict=True)
        for one, other in pairs:
            np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (one, other)))
    kernels = (model.get_layer("mlm_extension").kernel for model in (student, teacher))
    np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, kernels))
    with pytest.raises(ValueError, match="as wide, and no deeper. Received: num_feed_forwards=4, not 2"):
        check_start(student.backbone.shape, make_backbone(num_feed_forwards=2).shape)


@pytest.mark.any_backend
def test_student_starts_from_embeddings_and_head_of_an_inverted_bottleneck():
    """Its blocks keep their weights, and so does the norm of the embeddings, which is another one."""
    teacher, student = kbf.MaskedLM(make_backbone(**INVERTED)), kbf.MaskedLM(make_backbone())
    before = {weight.path: keras.ops.convert_to_numpy(weight) for weight in student.weights}
    known = {weight.path: keras.ops.convert_to_numpy(weight) for weight in teacher.weights}
    with pytest.raises(ValueError, match="normalization=no_norm, not layer_norm.*start to embeddings or random"):
        copy_layers(teacher, student)
    copy_layers(teacher, student, with_blocks=False)
    kept = ("encoder_block_", "embeddings/norm/")
    for weight in student.weights:
        source = before if weight.path.startswith(kept) else known
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(weight), source[weight.path], err_msg=weight.path)
    with pytest.raises(ValueError, match="Received: embedding_dim=7, not 6.*start to random"):
        copy_layers(teacher, kbf.MaskedLM(make_backbone(embedding_dim=7)), with_blocks=False)
    with pytest.raises(ValueError, match="trigram_dim=None, not 72"):
        check_start(kbf.Backbone(**SMALL).shape, make_backbone(embedding_dim=24).shape, with_blocks=False)


@pytest.mark.any_backend
def test_float16_is_refused_before_work():
    sizes = {"family": "mobilebert", "size": "tiny", "hidden_act": "relu"}
    config = PipelineConfig(model=sizes, pretraining={"precision": "mixed_float16"})
    with pytest.raises(ValueError, match="MobileBert must not be float16.* Received: mixed_float16. Use mixed_bfloat"):
        check_precisions(config)
    check_precisions(PipelineConfig(model=sizes, pretraining={"precision": "mixed_bfloat16"}))
    with pytest.raises(ValueError, match="Received: mixed_float16"):
        check_trained_part(PipelineConfig(finetuning={"precision": "mixed_float16"}), SHAPE)
    with pytest.raises(ValueError, match="Received: float16"):
        kbf.Backbone("mobilebert", **SMALL, dtype="mixed_float16")
    kbf.Backbone("mobilebert", **SMALL, normalization="layer_norm", dtype="mixed_float16")  # its states are normalised


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"bottleneck_dim": 10}, "`bottleneck_dim` must be divisible by `num_heads`.*Try bottleneck_dim=9"),
        ({"embedding_dim": 25}, "`embedding_dim` must be from 1 to `hidden_dim`.*Try 6"),
        ({"num_feed_forwards": 0}, "`num_feed_forwards` must be at least 1. Received: num_feed_forwards=0"),
        (
            {"normalization": "batch"},
            "`normalization` must be one of no_norm, layer_norm. Received: normalization='batch'",
        ),
    ],
)
def test_sizes_that_do_not_fit_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        kbf.Backbone("mobilebert", **SMALL | settings)


@pytest.mark.any_backend
def test_embeddings_as_wide_as_the_blocks_have_no_extension():
    model = kbf.MaskedLM(make_backbone(embedding_dim=24))
    assert "mlm_extension" not in {layer.name for layer in model.layers}

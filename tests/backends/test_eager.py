"""Eager steps of PyTorch without Keras' lookups: the same bits, and what Keras would do at a call is done."""

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.backends.eager import LayerWalk
from keras_bert_flow.layers.dense import Dense, Dropout
from keras_bert_flow.models.reentrant import ReentrantModel
from tests.oracles.small_bert import SMALL, make_inputs

pytestmark = pytest.mark.skipif(keras.backend.backend() != "torch", reason="the others trace a step")
INPUTS = make_inputs(masks_per_sequence=3)
LABELS = {"mlm": INPUTS["mask_positions"] + 7, "nsp": np.array([0, 1, 1, 0])}
WEIGHTS = {name: np.ones(label.shape, "float32") for name, label in LABELS.items()}


def make_model(dtype="float32", is_keras=False, **sizes):
    keras.utils.set_random_seed(3)
    rates = {"dropout_rate": 0.3, "attention_dropout_rate": 0.3}
    model = kbf.BertPretrainer(kbf.BertBackbone(**SMALL | rates | sizes, dtype=dtype))
    model.compile(kbf.adamw(learning_rate=1e-2, warmup_steps=2, total_steps=9), jit_compile=False)
    if is_keras:
        for each in (model, model.backbone):
            each.call = super(ReentrantModel, each).call
        model.train_step = lambda data: keras.Model.train_step(model, data)
    return model


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("padding", [0, 3])
def test_steps_have_the_bits_of_those_of_keras(dtype, padding):
    inputs = INPUTS | {"padding_mask": INPUTS["padding_mask"].copy()}
    inputs["padding_mask"][:, inputs["padding_mask"].shape[1] - padding :] = 0
    models = [make_model(dtype, is_keras) for is_keras in (False, True)]
    logs = [[model.train_on_batch(inputs, LABELS, WEIGHTS, return_dict=True) for _ in range(4)] for model in models]
    assert logs[0] == logs[1]
    for one, other in zip(models[0].variables, models[1].variables, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(one), keras.ops.convert_to_numpy(other), one.path)
    predictions = [model.predict(inputs, verbose=0) for model in models]
    for name, values in predictions[0].items():
        np.testing.assert_array_equal(values, predictions[1][name])


def make_graph(**layers):
    """Return a model of layers of Keras and of ours, one of which is called twice, with lists and constants."""
    first, second = keras.Input((3,), name="first"), keras.Input((3,), name="second")
    dense = layers.get("dense") or keras.layers.Dense(3, name="dense")
    merged = keras.layers.Concatenate()([dense(first), dense(second)])
    dropped = Dropout(0.5, name="dropped")(keras.layers.Dropout(0.5, seed=1)(merged))
    outputs = {"sum": keras.ops.sum(dropped, axis=-1), "all": [dropped, keras.ops.add(merged, 1.0)]}
    return ReentrantModel({"second": second, "first": first}, outputs)


@pytest.mark.parametrize("training", [None, False, True])
def test_graphs_of_other_layers_and_operations_are_walked(training):
    x = {name: np.random.default_rng(1).normal(size=(2, 3)).astype("float32") for name in ("first", "second")}
    found = []
    for is_keras in (False, True):
        keras.utils.set_random_seed(5)
        model = make_graph()
        if is_keras:
            model.call = super(ReentrantModel, model).call
        found.append(keras.tree.map_structure(keras.ops.convert_to_numpy, model(x, training=training)))
        assert (model._walk is None) == is_keras
    keras.tree.map_structure(np.testing.assert_array_equal, *found)
    assert (found[0]["all"][0] == 0).any() == bool(training)


def test_hooks_and_quantized_layers_are_called_by_keras():
    model, seen = make_graph(), []
    x = {name: np.ones((2, 3), "float32") for name in ("first", "second")}
    model(x)
    model.get_layer("dense").register_forward_hook(lambda *given: seen.append(1))
    model(x)
    assert seen == [1, 1]
    walk = LayerWalk(make_graph(dense=keras.layers.Dense(3, dtype="mixed_bfloat16")))
    assert not walk._direct  # inputs of the next layer are cast


def test_a_model_without_trainable_weights_is_told_by_keras():
    model = make_graph()
    model.trainable = False
    model.compile("sgd", loss={"sum": "mse", "all": ["mse", "mse"]}, jit_compile=False)
    x = {name: np.ones((2, 3), "float32") for name in ("first", "second")}
    with pytest.warns(UserWarning, match="does not have any trainable weights"):
        model.train_on_batch(x, {"sum": np.ones(2), "all": [np.ones((2, 6)), np.ones((2, 6))]})


class Penalty(keras.layers.Layer):
    def call(self, inputs):
        self.add_loss(keras.ops.mean(keras.ops.square(inputs)))
        return inputs


def test_losses_of_layers_are_those_of_the_batch():
    x, y = np.random.default_rng(2).normal(size=(2, 4, 3)).astype("float32")
    found = []
    for is_keras in (False, True):
        keras.utils.set_random_seed(5)
        inputs = keras.Input((3,), name="x")
        model = ReentrantModel({"x": inputs}, Penalty()(keras.layers.Dense(3)(inputs)))
        model.compile(keras.optimizers.SGD(0.1), loss="mse", jit_compile=False)
        if is_keras:
            model.train_step = lambda data, model=model: keras.Model.train_step(model, data)
        found.append([model.train_on_batch({"x": x}, y) for _ in range(4)])
    assert found[0] == found[1]


@pytest.mark.parametrize(("dtype", "shape"), [("int32", (2, 3, 1)), ("float32", (2, 3))])
def test_inputs_of_another_type_or_rank_are_converted(dtype, shape):
    model = ReentrantModel({"x": (inputs := keras.Input((3, 1), name="x"))}, Dense(1)(inputs))
    model.compile("sgd", loss="mse", jit_compile=False)
    x, seen = np.arange(6).reshape(2, 3, 1).astype("float32"), []
    given = x.astype(dtype).reshape(shape)
    for value in (x, given, *map(keras.ops.convert_to_tensor, (x, given))):
        losses = [step({"x": value}, np.ones((2, 3, 1))) for step in (model.test_on_batch, model.train_on_batch)]
        assert losses[0] == losses[1]
    model.register_forward_hook(lambda *given: seen.append(1))
    model.train_on_batch({"x": keras.ops.ones((2, 3, 1))}, np.ones((2, 3, 1)))
    assert seen == [1]


def test_recomputed_blocks_draw_what_they_drew():
    logs = []
    for part in ("nothing", "blocks", "attention"):
        model = make_model()
        model.backbone.set_rematerialised(part)
        logs.append([model.train_on_batch(INPUTS, LABELS, WEIGHTS) for _ in range(4)])
    np.testing.assert_allclose(logs[1], logs[0], rtol=1e-6)  # another order of sums
    np.testing.assert_allclose(logs[2], logs[0], rtol=1e-6)


def test_a_weight_that_the_loss_does_not_see_stays():
    model = make_model(num_layers=1)
    spare = model.add_weight((2,), initializer="ones", name="spare")
    model.compile(kbf.adamw(learning_rate=1e-2, total_steps=9), jit_compile=False)
    before = keras.ops.convert_to_numpy(model.backbone.token_embedding.embeddings).copy()
    model.train_on_batch(INPUTS, LABELS, WEIGHTS)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(spare), 1)
    assert np.any(before != keras.ops.convert_to_numpy(model.backbone.token_embedding.embeddings))

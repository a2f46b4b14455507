import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.models.backbone import Backbone

SHAPES = ((1, 8), (3, 8), (3, 11), (7, 30), (2, 5))


@pytest.fixture
def any_order_of_sums():
    """Turn off what a test before may have turned on; Keras leaves XLA out on TensorFlow where it is on."""
    if keras.backend.backend() != "tensorflow":
        yield
        return
    from tensorflow.python.framework import config

    was_on = config.is_op_determinism_enabled()
    config.disable_op_determinism()
    yield
    if was_on:
        config.enable_op_determinism()


def predict(model, rows, width):
    rng = np.random.default_rng(rows * width)
    token_ids = rng.integers(1, 50, (rows, width)).astype(np.int32)
    inputs = {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids), "padding_mask": token_ids > 5}
    return model.predict_on_batch(inputs)


@pytest.mark.slow_compiled
@pytest.mark.usefixtures("any_order_of_sums")
@pytest.mark.parametrize("jit_compile", ["auto", True])
@pytest.mark.first_form
def test_shapes_that_are_not_compiled_have_no_graph_each(monkeypatch, jit_compile):
    model = kbf.TextClassifier(kbf.BertBackbone.from_size("tiny", vocabulary_size=50, num_layers=1), num_classes=2)
    model.compile(jit_compile=jit_compile)
    if keras.backend.backend() != "tensorflow" and jit_compile is True:
        pytest.skip("It is XLA of TensorFlow that is looked at.")
    compiling = {"jax": True, "tensorflow": jit_compile is True, "torch": False}
    assert model.compiles_shapes == compiling[keras.backend.backend()]
    traced, call = [], Backbone.call
    monkeypatch.setattr(Backbone, "call", lambda self, *given, **named: traced.append(1) or call(self, *given, **named))
    found = [predict(model, *shape) for shape in SHAPES]
    if keras.backend.backend() == "tensorflow" and not model.compiles_shapes:
        assert len(traced) == 3  # a graph of the first shape, of any number of rows, and of any width as well
    alone = kbf.TextClassifier(kbf.BertBackbone.from_size("tiny", vocabulary_size=50, num_layers=1), num_classes=2)
    alone.set_weights(model.get_weights())
    for shape, logits in zip(SHAPES, found, strict=True):
        np.testing.assert_allclose(predict(alone, *shape), logits, atol=1e-6, rtol=0)  # of logits of about 0.1

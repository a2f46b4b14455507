"""The classifier: logits, defaults, learning, configuration."""

import keras
import numpy as np
import pytest

from keras_bert_flow.models.backbone import BertBackbone
from keras_bert_flow.models.heads.classifiers import TextClassifier
from tests.oracles import numpy_bert
from tests.oracles.small_bert import SMALL, make_inputs


def test_classifier_logits_agree_with_numpy():
    model = TextClassifier(BertBackbone(**SMALL), num_classes=3)
    numpy_bert.randomise_weights(model, seed=8)
    inputs = make_inputs()
    weights = numpy_bert.weights_of(model)
    _, pooled = numpy_bert.forward(weights, inputs, 2, 3)
    expected = pooled @ weights["classifier/kernel"] + weights["classifier/bias"]
    # As for the backbone's pooled output.
    np.testing.assert_allclose(model.predict(inputs, verbose=0), expected, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("mixed_bfloat16", marks=pytest.mark.any_backend)])
@pytest.mark.slow_compiled
def test_classifier_learns_with_compile_defaults(dtype):
    keras.utils.set_random_seed(0)
    model = TextClassifier(BertBackbone(**SMALL | {"num_layers": 1}, dtype=dtype), num_classes=2)
    model.compile(optimizer=keras.optimizers.Adam(1e-2))
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 64)
    inputs = {
        "token_ids": np.where(labels, 10, 40)[:, None] + rng.integers(0, 3, (64, 6)),
        "segment_ids": np.zeros((64, 6)),
        "padding_mask": np.ones((64, 6)),
    }
    inputs = {name: value.astype("int32") for name, value in inputs.items()}
    model.fit(inputs, labels, batch_size=16, epochs=8, verbose=0)
    logs = model.evaluate(inputs, labels, verbose=0, return_dict=True)
    assert logs["accuracy"] == 1.0  # the words of the classes do not overlap
    assert keras.backend.standardize_dtype(model(inputs).dtype) == "float32"


@pytest.mark.slow_compiled
def test_classifier_compile_defaults_weigh_examples():
    model = TextClassifier(BertBackbone(**SMALL), num_classes=3)
    numpy_bert.randomise_weights(model, seed=8)
    model.compile()
    inputs, labels = make_inputs(), np.array([0, 1, 2, 1])
    weights = np.array([1, 1, 0, 0], "float32")
    logs = model.evaluate(inputs, labels, sample_weight=weights, verbose=0, return_dict=True)
    logits = model.predict(inputs, verbose=0).astype("float64")
    entropy = np.log(np.exp(logits).sum(-1)) - logits[np.arange(4), labels]
    assert logs["loss"] == pytest.approx(entropy[:2].mean(), abs=1e-5)
    assert logs["accuracy"] == pytest.approx((logits.argmax(-1) == labels)[:2].mean(), abs=1e-6)


def test_classifier_config_round_trip():
    model = TextClassifier(BertBackbone(**SMALL), num_classes=2, dropout_rate=0.3, labels=["no", "yes"])
    twin = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(model))
    assert twin.labels == ("no", "yes")
    assert twin.get_config() == model.get_config()


def test_classifier_refuses_wrong_numbers():
    backbone = BertBackbone(**SMALL)
    with pytest.raises(ValueError, match="at least 2. Received: num_classes=1"):
        TextClassifier(backbone, num_classes=1)
    with pytest.raises(ValueError, match="2 labels, num_classes=3"):
        TextClassifier(backbone, num_classes=3, labels=["a", "b"])


@pytest.mark.any_backend
def test_config_names_the_backbone_as_keras_does_without_asking_for_tensorflow(monkeypatch):
    """Keras does, at every object; where TensorFlow is installed beside another backend it takes seconds to load."""
    model = TextClassifier(BertBackbone(**SMALL), num_classes=3)
    theirs = keras.saving.serialize_keras_object(model.backbone)

    class Unasked:
        @property
        def available(self):
            raise AssertionError("TensorFlow was asked for")

    monkeypatch.setattr("keras.src.saving.serialization_lib.tf", Unasked())
    config = model.get_config()
    assert config["backbone"].items() <= theirs.items()
    assert theirs.keys() - config["backbone"] == {"build_config", "compile_config"}  # a functional model has neither
    twin = TextClassifier.from_config(config)
    assert [weight.path for weight in twin.weights] == [weight.path for weight in model.weights]

"""Labels as Keras takes them: one-hot, smoothed, of the wrong shape; and the call after one that failed."""

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.tasks.core.texts import TextExample
from tests.oracles.small_bert import SMALL, make_inputs

X = {name: values[:3] for name, values in make_inputs().items()}  # without the row of padding
Y = np.array([2, 0, 1])
ONE_HOT = np.eye(3, dtype="float32")[Y]


@pytest.fixture
def model():
    model = kbf.TextClassifier(kbf.BertBackbone(**SMALL | {"num_layers": 1}), 3, dropout_rate=0.0)
    model.compile()
    return model


@pytest.mark.slow_compiled
def test_one_hot_labels_are_measured_like_ids(model):
    # The same sums in another order.
    np.testing.assert_allclose(model.evaluate(X, ONE_HOT, verbose=0), model.evaluate(X, Y, verbose=0), rtol=1e-6)
    soft = np.full((3, 3), 1 / 3, "float32")
    logits = model.predict(X, verbose=0)
    wanted = np.mean(np.log(np.exp(logits).sum(-1)) - logits.mean(-1))
    assert model.evaluate(X, soft, verbose=0)[0] == pytest.approx(wanted, rel=1e-5)
    assert np.isfinite(model.fit(X, ONE_HOT, verbose=0).history["loss"][0])


@pytest.mark.slow_compiled
@pytest.mark.parametrize(
    "loss",
    [keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1), "categorical_crossentropy"],
)
@pytest.mark.first_form
@pytest.mark.slow_on_tensorflow
def test_losses_of_keras_go_with_the_default_metrics(model, loss):
    model.compile(loss=loss)
    history = model.fit(X, ONE_HOT, validation_data=(X, ONE_HOT), verbose=0).history
    right = (model.predict(X, verbose=0).argmax(-1) == Y).mean()
    assert history["val_accuracy"] == [pytest.approx(right)]


@pytest.mark.parametrize("labels", [np.eye(4)[Y], np.zeros((3, 2), int)])
def test_labels_of_another_shape_are_refused(model, labels):
    with pytest.raises(ValueError, match=rf"one-hot, \(rows, 3\). Received: the shape \(3, {labels.shape[1]}\)"):
        model.fit(X, labels)


@pytest.mark.slow_compiled
@pytest.mark.parametrize("method", ["fit", "evaluate", "predict", "train_on_batch", "test_on_batch"])
@pytest.mark.first_form
def test_the_call_after_one_that_failed_works(model, method):
    wrong = X | {"segment_ids": X["segment_ids"][:, :3]}
    labels = () if method == "predict" else (Y,)
    options = {} if "batch" in method else {"verbose": 0}
    with pytest.raises((ValueError, RuntimeError, TypeError)):
        getattr(model, method)(wrong, *labels, **options)
    model.fit(X, Y, verbose=0)
    model.evaluate(X, Y, verbose=0)
    assert model.predict(X, verbose=0).shape == (3, 3)


class Alphabet:
    """A tokenizer of letters."""

    pad_id, unk_id, cls_id, sep_id, mask_id = range(5)
    separators = 1

    def encode_batch(self, texts):
        return [np.array([5 + ord(letter) - ord("a") for letter in text], np.int32) for text in texts]


@pytest.mark.slow_compiled
def test_an_epoch_is_a_pass_unless_it_is_given(model):
    examples = [TextExample("abc"[:number], label=str(number % 3)) for number in (1, 2, 3, 3, 1)]
    task = kbf.make_task("classification", labels=["0", "1", "2"])
    dataset = kbf.task_dataset(task.encode(Alphabet(), examples, 8), batch_size=2)
    assert dataset.steps_per_epoch == 3
    steps = []
    counter = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))
    model.fit(dataset, epochs=2, verbose=0, callbacks=[counter], validation_data=dataset)
    assert steps == [0, 1, 2] * 2
    model.fit(dataset, steps_per_epoch=1, verbose=0, callbacks=[counter])
    assert steps == [0, 1, 2] * 2 + [0]
    assert np.isfinite(model.evaluate(dataset, verbose=0)[0])

"""Prediction and evaluation from several threads, and after an exception at any moment."""

import importlib
import signal
import threading

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.backends.values import read_variable
from keras_bert_flow.data.tasks import predict_features
from keras_bert_flow.models.heads.embedders import make_features_model
from keras_bert_flow.models.pretraining.masked_lm import make_token_scorer, make_vocabulary_model
from keras_bert_flow.tasks.core.task import Features
from tests.oracles.small_bert import SMALL, make_inputs
from tests.oracles.task_models import make_task_inputs, make_task_labels, make_task_model

THREADS, CALLS, ALARMS = 3, 12, 15
LONGEST_SECONDS = 0.02  # a call takes a few milliseconds


class Called:
    """A classifier, its data, and the calls that must not change; all batches have the same shape."""

    def __init__(self):
        self.model = make_task_model("classification")
        self.model.compile()
        x, y = make_task_inputs("classification"), make_task_labels("classification")
        self.x, self.y = {name: np.concatenate([ids, ids[::-1]]) for name, ids in x.items()}, np.concatenate([y, y])
        self.features = Features([np.arange(1, 10)] * 4, np.full(4, 3), np.arange(4), sequence_length=9)
        self.calls = {
            "predict": lambda: self.model.predict(self.x, batch_size=4, verbose=0),
            "predict_on_batch": lambda: self.model.predict_on_batch(x),
            "predict_features": lambda: predict_features(self.model, self.features, batch_positions=36)["logits"],
            "evaluate": lambda: self.model.evaluate(self.x, self.y, batch_size=4, verbose=0),
            "test_on_batch": lambda: self.model.test_on_batch(x, y),
            "call": lambda: keras.ops.convert_to_numpy(self.model(x, training=False)),
        }
        self.expected = {name: call() for name, call in self.calls.items()}

    def check(self, name):
        np.testing.assert_allclose(self.calls[name](), self.expected[name], atol=1e-6, rtol=0, err_msg=name)


@pytest.fixture(scope="module")
def called():
    return Called()


@pytest.mark.slow_compiled
def test_threads_get_the_results_of_one(called):
    errors = []

    def work(number):
        names = list(called.calls)
        try:
            for count in range(CALLS):
                called.check(names[(number + count) % len(names)])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=[number]) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


# TensorFlow's C calls Python, and makes of an interrupt there another exception or, at times, a segmentation fault.
@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="it may end the process")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # an alarm in a destructor
@pytest.mark.parametrize("name", ["predict", "predict_on_batch", "predict_features", "evaluate", "test_on_batch"])
@pytest.mark.slow_compiled
def test_calls_work_after_an_interrupt_at_any_moment(called, tmp_path, name):
    """As after Ctrl-C, at moments over the whole call and beyond; then every call, and saving, is as before."""

    has_rung = False

    def interrupt(*_):
        nonlocal has_rung
        has_rung = True
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for seconds in np.linspace(1e-5, LONGEST_SECONDS, ALARMS):
            has_rung = False
            try:
                signal.setitimer(signal.ITIMER_REAL, seconds)
                while not has_rung:  # Python ignores an exception in a destructor
                    called.calls[name]()
            except (KeyboardInterrupt, SystemError):  # the second where NumPy's C called Python
                assert has_rung
    finally:
        signal.signal(signal.SIGALRM, before)
    for each in called.calls:
        called.check(each)
    assert keras.Variable(0.0, name="path").path == "path"  # else that of all later variables would begin with a scope
    if keras.backend.backend() == "torch":
        assert importlib.import_module("torch").is_grad_enabled()  # else no model of this process could be trained
    if name == "predict":
        called.model.save_to_preset(tmp_path)
        saved = kbf.TextClassifier.from_preset(tmp_path)
        for ours, theirs in zip(called.model.weights, saved.weights, strict=True):
            np.testing.assert_array_equal(read_variable(ours), read_variable(theirs))


@pytest.mark.parametrize("name", ["fit", "predict", "predict_on_batch", "evaluate", "test_on_batch"])
def test_an_exception_leaves_no_name_scope_open(called, monkeypatch, name):
    """An interrupt as Keras enters one can do that, before the body of `with`."""

    def fail(*_, **options):
        keras.name_scope("left").__enter__()
        keras.name_scope("open", override_parent="far/away").__enter__()
        raise KeyboardInterrupt

    model = make_task_model("classification")
    model.compile()
    kind = {"fit": "train", "evaluate": "test"}.get(name, name.split("_")[0])
    monkeypatch.setattr(model, f"make_{kind}_function", fail)
    if model._loops is not None:
        monkeypatch.setattr(model._loops, "_run", fail)
        monkeypatch.setattr(model._loops, "_call", fail)
    x, y = make_task_inputs("classification"), make_task_labels("classification")
    with pytest.raises(KeyboardInterrupt):
        getattr(model, name)(x, *(() if name.startswith("predict") else (y,)))
    assert keras.Variable(0.0, name="path").path == "path"


@pytest.mark.first_form_compiled
@pytest.mark.skipif(keras.backend.backend() != "jax", reason="Only JAX can donate values.")
@pytest.mark.parametrize("kind", ["encoder", "features", "hidden_states", "scorer", "vocabulary"])
def test_no_model_gives_its_values_away(kind):
    """Models that share weights with another one, which finds them deleted otherwise; see `keras.Model` on JAX."""
    backbone = kbf.Backbone(**SMALL | {"num_layers": 1, "use_pooler": False})
    x = make_inputs(0)
    if kind in ("scorer", "vocabulary"):
        masked_lm = kbf.MaskedLM(backbone)
        model = make_token_scorer(masked_lm) if kind == "scorer" else make_vocabulary_model(masked_lm)
        x |= dict.fromkeys(("mask_positions", "target_ids"), np.ones((4, 2), "int32")) if kind == "scorer" else {}
    else:
        model = {
            "encoder": lambda: backbone,
            "features": lambda: make_features_model(backbone, [-1]),
            "hidden_states": backbone.make_hidden_states_model,
        }[kind]()
    values = [variable.value for variable in model.variables]
    model.predict_on_batch(x)
    model.predict(x, verbose=0)
    assert not any(value.is_deleted() for value in values)
    assert all(variable.value is value for variable, value in zip(model.variables, values, strict=True))


def test_callbacks_see_the_model_and_can_stop_it(called):
    seen = []

    class Stop(keras.callbacks.Callback):
        def on_predict_batch_end(self, batch, logs=None):
            seen.append((self.model, batch, self.params["steps"], logs["outputs"].shape))
            self.model.stop_predicting = True

        def on_test_batch_end(self, batch, logs=None):
            seen.append((self.model, batch, self.params["steps"], sorted(logs)))
            self.model.stop_evaluating = True

    assert called.model.predict(called.x, batch_size=4, verbose=0, callbacks=[Stop()]).shape == (4, 3)
    called.model.evaluate(called.x, called.y, batch_size=4, verbose=0, callbacks=[Stop()])
    assert seen == [(called.model, 0, 2, (4, 3)), (called.model, 0, 2, ["accuracy", "loss"])]
    called.check("predict")

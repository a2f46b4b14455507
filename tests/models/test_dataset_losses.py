"""Losses of an evaluation are means over rows and tokens; ids and labels that do not exist are errors."""

import importlib

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.data.tasks import predict_features, task_dataset
from keras_bert_flow.models.defaults import TokenLoss
from keras_bert_flow.tasks.core.task import IGNORED, Features, mean_loss
from tests.oracles.task_models import make_task_inputs, make_task_labels, make_task_model

ROWS, BATCH = 5, 4  # a whole batch, and one of a real row and three of filler
TOLERANCE = 2e-5  # float32 losses of up to 10
SIZES = {"vocabulary_size": 50, "num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}


def make_features(kind):
    rng = np.random.default_rng(1)
    lengths = rng.permutation([9, 3, 6, 4, 8])
    texts = {"multiple_choice": 3, "cosine_pairs": 2}.get(kind, 1)
    ids = [rng.integers(5, 40, length).astype("int32") for length in np.repeat(lengths, texts)]
    labels = {
        "classification": lambda: {"logits": rng.integers(0, 3, ROWS)},
        "regression": lambda: {"logits": rng.normal(size=ROWS).astype("float32")},
        "multi_label": lambda: {"logits": rng.integers(0, 2, (ROWS, 3)).astype("float32")},
        "token_classification": lambda: {
            "logits": [np.where(rng.random(n) < 0.3, IGNORED, rng.integers(0, 3, n)).astype("int32") for n in lengths]
        },
        "question_answering": lambda: {name: rng.integers(0, lengths) for name in ("start", "end")},
        "multiple_choice": lambda: {"logits": rng.integers(0, 3, ROWS)},
    }[kind]()
    places = np.arange(ROWS)
    return Features(ids, np.full(len(ids), 2), places, labels, sequences_per_row=texts, sequence_length=9)


@pytest.mark.parametrize(
    "kind",
    [
        "classification",
        "question_answering",
        "token_classification",
        *(
            pytest.param(kind, marks=pytest.mark.any_backend)
            for kind in ("regression", "multi_label", "multiple_choice")
        ),
    ],
)
@pytest.mark.first_form
@pytest.mark.slow_compiled
def test_filler_rows_and_short_batches_do_not_count(kind):
    model, features = make_task_model(kind), make_features(kind)
    model.compile()
    found = model.evaluate(task_dataset(features, BATCH), steps=2, verbose=0, return_dict=True)
    wanted = mean_loss(predict_features(model, features), features)
    assert found["loss"] == pytest.approx(wanted, abs=TOLERANCE)


@pytest.mark.any_backend
def test_weights_of_rows_are_those_of_the_mean():
    x, labels = make_task_inputs("classification"), make_task_labels("classification")
    model, weights = make_task_model("classification"), np.array([3, 0.5, 0, 1], "float32")
    model.compile()
    logits = keras.ops.convert_to_numpy(model(x)).astype("float64")
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(4), labels]
    logs = model.evaluate(x, labels, sample_weight=weights, batch_size=3, verbose=0, return_dict=True)
    assert logs["loss"] == pytest.approx((losses * weights).sum() / weights.sum(), abs=TOLERANCE)
    history = model.fit(
        x, labels, validation_data=(x, labels, weights), validation_batch_size=3, verbose=0, steps_per_epoch=1
    ).history
    logits = keras.ops.convert_to_numpy(model(x)).astype("float64")
    losses = np.log(np.exp(logits).sum(-1)) - logits[np.arange(4), labels]
    assert history["val_loss"][0] == pytest.approx((losses * weights).sum() / weights.sum(), abs=TOLERANCE)


@pytest.mark.any_backend
def test_outputs_of_a_pretrainer_have_weights_of_their_own():
    rng = np.random.default_rng(0)
    backbone = kbf.BertBackbone(**SIZES)
    model = kbf.BertPretrainer(backbone)
    model.compile()
    x = {name: np.ones((5, 8), "int32") for name in ("token_ids", "segment_ids", "padding_mask")}
    x["mask_positions"] = np.tile(np.arange(3, dtype="int32"), (5, 1))
    x["token_ids"] = rng.integers(0, 50, (5, 8)).astype("int32")
    y = {"mlm": rng.integers(0, 50, (5, 3)), "nsp": rng.integers(0, 2, 5)}
    weights = {"mlm": rng.integers(0, 2, (5, 3)).astype("float32"), "nsp": np.array([1, 1, 0, 1, 1], "float32")}
    weights["mlm"][4] = 0  # the second batch has none
    logs = model.evaluate(x, y, sample_weight=weights, batch_size=4, verbose=0, return_dict=True)
    outputs, means = model.predict(x, verbose=0), {}
    for name, logits in outputs.items():
        logits = logits.astype("float64")
        losses = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, y[name][..., None], -1)[..., 0]
        means[name] = (losses * weights[name]).sum() / weights[name].sum()
        assert logs[f"{name}_loss"] == pytest.approx(means[name], abs=TOLERANCE)
    assert logs["loss"] == pytest.approx(sum(means.values()), abs=TOLERANCE)


WRONG = {  # kind → a change of the labels, and what is said of it
    "classification": (lambda y: y.__setitem__(1, 3), "from 0 to 2. Received: 3 in row 1."),
    "token_classification": (lambda y: y.__setitem__((1, 0), 3), "up to 2. Received: 3 in row 1."),
    "multi_label": (lambda y: y.__setitem__((1, 2), 2), "from 0 to 1. Received: 2"),
    "regression": (lambda y: y.__setitem__(1, np.nan), "finite numbers. Received: nan in row 1."),
    "cosine_pairs": (lambda y: y.__setitem__(1, 4.5), "from -1 to 1. Received: 4.5 in row 1."),
    "question_answering": (lambda y: y["end"].__setitem__(1, 8), "end labels must be the places of real tokens"),
    "multiple_choice": (lambda y: y.__setitem__(1, 3), "choices"),
}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.any_backend
def test_labels_that_do_not_exist_are_errors_for_every_head(kind):
    model, labels = make_task_model(kind), make_task_labels(kind)
    model.compile()
    change, said = WRONG[kind]
    change(labels)
    before = [value.copy() for value in model.get_weights()]
    for call in (model.fit, model.evaluate, model.train_on_batch, model.test_on_batch):
        with pytest.raises(ValueError) as error:
            call(make_task_inputs(kind), labels)
        assert said in str(error.value) and "\n" not in str(error.value)
    for now, then in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(now, then)


@pytest.mark.any_backend
def test_a_label_of_no_weight_does_not_hide_the_next():
    model, labels = make_task_model("question_answering"), make_task_labels("question_answering")
    model.compile()
    labels["end"][0], labels["end"][1] = 100, 8  # beyond the row, and padding
    weights = {name: np.array([0.0, *np.ones(len(values) - 1)]) for name, values in labels.items()}
    with pytest.raises(ValueError, match=r"end labels must be .* Received: 8 in row 1"):
        model.evaluate(make_task_inputs("question_answering"), labels, sample_weight=weights)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="only TensorFlow distributes datasets")
@pytest.mark.slow
def test_distributed_datasets_are_trained_on():
    tensorflow = importlib.import_module("tensorflow")
    x, labels = make_task_inputs("classification"), make_task_labels("classification")
    strategy = tensorflow.distribute.MirroredStrategy(["CPU:0"])
    with strategy.scope():
        model = make_task_model("classification")
        model.compile()
    batches = strategy.distribute_datasets_from_function(
        lambda _: tensorflow.data.Dataset.from_tensors((x, labels)).repeat()
    )
    before = model.get_weights()[0]
    model.fit(batches, steps_per_epoch=2, verbose=0)
    assert not np.array_equal(model.get_weights()[0], before)


@pytest.mark.first_form_compiled
@pytest.mark.parametrize("label", [3, -1, -100])
def test_labels_of_every_source_are_looked_at(label):
    x, labels = make_task_inputs("classification"), make_task_labels("classification")
    model = make_task_model("classification")
    model.compile()
    labels[2] = label

    class Rows(keras.utils.PyDataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return x, labels

    features = make_features("classification")
    features.labels["logits"][2] = label
    sources = [((x, labels), {}), ((Rows(),), {}), (((batch for batch in [(x, labels)]),), {"steps": 1})]
    sources.append(((task_dataset(features, ROWS),), {"steps": 1}))
    if keras.backend.backend() == "tensorflow":
        import tensorflow

        sources.append(((tensorflow.data.Dataset.from_tensor_slices((x, labels)).batch(4),), {}))
    if keras.backend.backend() == "torch":
        import torch

        sources.append(((torch.utils.data.DataLoader([(x, labels)], batch_size=None),), {}))
    for given, options in sources:
        with pytest.raises(ValueError) as error:
            model.evaluate(*given, verbose=0, **options)
        assert str(error.value).startswith(f"The labels must be whole numbers from 0 to 2. Received: {label} in row")
        assert "\n" not in str(error.value)


def test_loss_of_a_label_that_does_not_exist_is_nan_unless_it_has_no_weight():
    logits, loss = np.array([[1.0, 2.0, 3.0]] * 3, "float32"), TokenLoss(reduction="none")
    for label in (3, -1, -100):
        values = keras.ops.convert_to_numpy(loss(np.array([2, label, 0]), logits))
        assert np.isnan(values[1]) and np.isfinite(values[[0, 2]]).all()
        values = keras.ops.convert_to_numpy(loss(np.array([2, label, 0]), logits, np.array([1.0, 0.0, 1.0])))
        assert np.isfinite(values).all() and values[1] == 0


@pytest.mark.parametrize("name", ["token_ids", "segment_ids"])
def test_ids_that_no_table_has_are_errors(name):
    x, model = make_task_inputs("classification"), make_task_model("classification")
    for wrong in (-1, 10_000):
        x[name] = x[name].copy()
        x[name][1, 0] = wrong
        for call in (model.predict, model.predict_on_batch):
            with pytest.raises(ValueError, match=rf"`{name}` must be from 0 to .*Received: {wrong} in row 1"):
                call(x)

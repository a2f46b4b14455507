"""Each model learns a toy task as a user would have it: public names, numpy arrays, `model.fit`."""

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf

pytestmark = pytest.mark.any_backend  # test_task_models trains each on every backend

TEXTS, LENGTH = 96, 6
SIZES = {"vocabulary_size": 50, "num_layers": 1, "num_heads": 3, "hidden_dim": 24, "intermediate_dim": 40}


@pytest.fixture(autouse=True)
def seeded():
    keras.utils.set_random_seed(0)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def make_inputs(token_ids):
    """Return the inputs of texts that fill their rows."""
    return {
        "token_ids": token_ids.astype("int32"),
        "segment_ids": np.zeros_like(token_ids, "int32"),
        "padding_mask": np.ones_like(token_ids, "int32"),
    }


def fit(model, x, y=None, epochs=12):
    """Train with the loss and metrics of the model itself; return what it says then of the same texts."""
    model.compile(optimizer=keras.optimizers.Adam(5e-3))
    model.fit(x, y, batch_size=16, epochs=epochs, verbose=0)
    return model.evaluate(x, y, batch_size=16, verbose=0, return_dict=True)


def make_backbone(use_pooler):
    return kbf.BertBackbone(**SIZES, max_positions=16, use_pooler=use_pooler)


@pytest.mark.slow
def test_regressor_learns_a_number(rng):
    numbers = rng.uniform(-1, 1, TEXTS)
    token_ids = np.where(rng.uniform(-1, 1, (TEXTS, LENGTH)) < numbers[:, None], 10, 40)  # the share of one word
    numbers = (token_ids == 10).mean(axis=1).astype("float32")
    model = kbf.TextRegressor(make_backbone(use_pooler=True))
    logs = fit(model, make_inputs(token_ids), numbers)
    assert logs["root_mean_squared_error"] < numbers.std() / 2


@pytest.mark.slow
def test_multi_label_classifier_learns_words(rng):
    words = rng.integers(0, 4, TEXTS)
    labels = np.array([[1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 0, 0]])[words]  # two, one or none of three
    model = kbf.MultiLabelClassifier(make_backbone(use_pooler=True), num_classes=3)
    logs = fit(model, make_inputs(words[:, None] * 10 + rng.integers(10, 13, (TEXTS, LENGTH))), labels)
    assert logs["accuracy"] > 0.95


@pytest.mark.slow
def test_token_classifier_learns_tags(rng):
    token_ids = rng.integers(0, 50, (TEXTS, LENGTH))
    tags = token_ids // 25
    weights = np.ones((TEXTS, LENGTH), "float32")
    tags[:, 0], weights[:, 0] = 1, 0  # of no weight, and wrong for half of the rows
    model = kbf.TokenClassifier(make_backbone(use_pooler=False), num_classes=2, labels=["low", "high"])
    model.compile(optimizer=keras.optimizers.Adam(5e-3))
    x = make_inputs(token_ids)
    model.fit(x, tags, sample_weight=weights, batch_size=16, epochs=12, verbose=0)
    said = model.predict(x, verbose=0).argmax(-1)
    assert (said == token_ids // 25).mean() > 0.95


@pytest.mark.slow
def test_question_answerer_learns_spans(rng):
    token_ids = rng.integers(0, 30, (TEXTS, LENGTH))
    start, end = rng.integers(0, 3, TEXTS), rng.integers(3, LENGTH, TEXTS)
    token_ids[np.arange(TEXTS), start], token_ids[np.arange(TEXTS), end] = 45, 46
    model = kbf.QuestionAnswerer(make_backbone(use_pooler=False))
    logs = fit(model, make_inputs(token_ids), {"start": start, "end": end})
    assert min(logs["start_accuracy"], logs["end_accuracy"]) > 0.95


@pytest.mark.slow
def test_multiple_choice_learns_the_right_one(rng):
    token_ids = rng.integers(20, 40, (TEXTS, 4, LENGTH))
    right = rng.integers(0, 4, TEXTS)
    token_ids[np.arange(TEXTS), right, 2] = 45
    logs = fit(kbf.MultipleChoice(make_backbone(use_pooler=True)), make_inputs(token_ids), right)
    assert logs["accuracy"] > 0.95


@pytest.mark.slow
def test_pairs_learn_from_each_other(rng):
    topics = np.stack([rng.permutation(16) for _ in range(TEXTS // 16)]).ravel()  # none twice in a batch unshuffled
    token_ids = rng.integers(30, 50, (TEXTS, 2, LENGTH))
    token_ids[:, 0, 1], token_ids[:, 1, 4] = topics, topics
    model = kbf.PairEmbedder(make_backbone(use_pooler=False))
    logs = fit(model, make_inputs(token_ids), epochs=20)
    assert logs["accuracy"] > 0.9  # by chance 1 of 16
    vectors = model.make_embedder().predict(make_inputs(token_ids[:, 0]), verbose=0)
    same = topics[:, None] == topics
    cosines = vectors @ vectors.T
    assert cosines[same].mean() > cosines[~same].mean() + 0.3


@pytest.mark.slow
def test_pairs_learn_cosines(rng):
    first, second = rng.integers(0, 2, (2, TEXTS))
    words = np.stack([first, second], axis=1)[..., None] * 30 + rng.integers(0, 20, (TEXTS, 2, LENGTH))
    cosines = np.where(first == second, 1.0, -1.0).astype("float32")
    logs = fit(kbf.PairEmbedder(make_backbone(use_pooler=False), objective="cosine"), make_inputs(words), cosines)
    assert logs["root_mean_squared_error"] < 0.3

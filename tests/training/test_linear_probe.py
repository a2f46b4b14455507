"""Heads that start from a linear probe: by scikit-learn on transformers' vectors, kept, refused, killed and resumed."""

import re

import numpy as np
import pytest
from scipy.special import expit, softmax
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, PredefinedSplit

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.conversion.model_directory import load_task_model, save_model_directory
from keras_bert_flow.data.tasks import predict_features
from keras_bert_flow.tasks.baselines import linear_head
from keras_bert_flow.tasks.baselines.linear_head import STRENGTHS, fit_head, fit_start, spread_rows
from keras_bert_flow.tasks.baselines.word_baseline import assign_folds
from keras_bert_flow.tasks.core.texts import TextExample
from keras_bert_flow.tasks.registry import make_task
from keras_bert_flow.training.finetuning import starts
from keras_bert_flow.training.finetuning.finetune import finetune
from keras_bert_flow.training.finetuning.starts import LinearProbe
from tests.oracles.numpy_bert import randomise_weights
from tests.tasks.kinds import LETTERS, TOKENIZER
from tests.training.finetune_cases import LENGTH, finetune_case, write_tiny_model
from tests.training.separable_task import make_task_config

ROWS, SEED = 90, 3
KINDS = {"two": "classification", "three": "classification", "multi_label": "multi_label", "regression": "regression"}
EVERY_POOLING = pytest.mark.parametrize("pooling", ["cls", "mean"])
# float32: of the vectors (1e-6, of two implementations) and of the head (6e-8), through kernels with a norm of up to
# some 10; and the gradient at which L-BFGS ends.
TOLERANCE = 1e-5


def draw_examples(name, rows=ROWS):
    """Draw ragged texts of mostly one letter, on which their label depends; not so sure that the weakest regularisation
    were the best."""
    rng = np.random.default_rng(0)
    examples = []
    for _ in range(rows):
        topic = int(rng.integers(16))
        words = np.where(rng.random(rng.integers(2, 8)) < 0.7, topic, rng.integers(16))
        label = {
            "two": ("no", "yes")[topic > 9],
            "three": "abc"[topic * 3 // 16],
            "multi_label": tuple(mark for mark, least in (("x", 4), ("y", 8), ("z", 12)) if topic >= least),
            "regression": topic / 4 + 2.0,
        }[name]
        examples.append(TextExample(" ".join(LETTERS[word] for word in words), None, label))
    return examples


def make_probed(name, pooling, folder):
    """Return a model with a probed head, and the features of its rows; the model is saved in the folder."""
    kind = KINDS[name]
    examples = draw_examples(name)
    task = make_task(kind).learn(examples)
    features = task.encode(TOKENIZER, examples, LENGTH)
    directory = write_tiny_model(folder)
    # Dropout shows if it is on.
    model = load_task_model(kind, directory, labels=task.labels, pooling=pooling, dropout_rate=0.5)
    randomise_weights(model, 7)
    LinearProbe(model, kind).start_head(features, 4, SEED)
    save_model_directory(model, folder / "probed", folder / "vocab.txt")
    return model, features


def pool_with_transformers(folder, features, pooling):
    """Return the vectors of texts, float64, (rows, hidden), one text at a time."""
    torch = pytest.importorskip("torch", reason="the reference needs torch")
    transformers = pytest.importorskip("transformers", reason="the reference needs transformers")
    encoder = transformers.BertModel.from_pretrained(folder, add_pooling_layer=pooling == "cls").eval()
    vectors = []
    with torch.no_grad():
        for ids in features.token_ids:
            found = encoder(torch.tensor(ids[None]).long())
            vectors.append((found.pooler_output if pooling == "cls" else found.last_hidden_state.mean(1))[0].numpy())
    return np.array(vectors, np.float64)


def search(model, name, unit, vectors, labels, scoring):
    """Choose by scikit-learn's own search in the same folds, on vectors as they are."""
    grid = {name: [unit * strength if name == "C" else 1 / (unit * strength) for strength in STRENGTHS]}
    folds = PredefinedSplit(assign_folds(labels, np.random.default_rng(SEED)))
    found = GridSearchCV(model, grid, scoring=scoring, cv=folds).fit(vectors, labels)
    assert 0 < found.best_index_ < len(STRENGTHS) - 1  # or a strength that is not chosen would not show
    return found.best_estimator_


def unit_of(vectors):
    """C for vectors as they are that means what 1 does for centred ones whose mean squared norm is 1."""
    return 1 / np.square(vectors - vectors.mean(axis=0)).sum(axis=1).mean()


@pytest.fixture
def unmoved(monkeypatch):
    """Check probes on held-out vectors as they are: those of the tiny encoder hardly differ."""
    monkeypatch.setattr(linear_head, "MOVED", 0.0)
    monkeypatch.setattr(linear_head, "MOST_LOGIT", np.inf)


@pytest.mark.usefixtures("unmoved")
@EVERY_POOLING
@pytest.mark.parametrize("name", ["two", "three"])
@pytest.mark.any_backend
@pytest.mark.first_form
def test_classes_have_the_probabilities_of_scikit_learn(tmp_path, name, pooling):
    model, features = make_probed(name, pooling, tmp_path)
    vectors, labels = pool_with_transformers(tmp_path / "probed", features, pooling), features.labels["logits"]
    logistic = LogisticRegression(solver="newton-cholesky", tol=1e-9)
    wanted = search(logistic, "C", unit_of(vectors), vectors, labels, "neg_log_loss").predict_proba(vectors)
    found = softmax(predict_features(model, features)["logits"], axis=1)
    np.testing.assert_allclose(found, wanted, atol=TOLERANCE, rtol=0)
    assert np.ptp(wanted[:, 0]) > 0.3  # it has learnt something


@pytest.mark.usefixtures("unmoved")
@pytest.mark.any_backend
@EVERY_POOLING
def test_numbers_are_those_of_ridge_regression(tmp_path, pooling):
    model, features = make_probed("regression", pooling, tmp_path)
    vectors, labels = pool_with_transformers(tmp_path / "probed", features, pooling), features.labels["logits"]
    ridge = search(Ridge(), "alpha", unit_of(vectors), vectors, labels, "neg_mean_squared_error")
    found = predict_features(model, features)["logits"]
    np.testing.assert_allclose(found, ridge.predict(vectors), atol=5 * TOLERANCE, rtol=0)  # of numbers up to 6
    assert np.ptp(found) > 1


@pytest.mark.slow
@pytest.mark.any_backend
@EVERY_POOLING
@pytest.mark.first_form
def test_labels_have_a_logistic_regression_each(tmp_path, pooling):
    model, features = make_probed("multi_label", pooling, tmp_path)
    vectors, labels = pool_with_transformers(tmp_path / "probed", features, pooling), features.labels["logits"]
    found, unit = expit(predict_features(model, features)["logits"]), unit_of(vectors)

    def fit(strength):
        models = [LogisticRegression(C=unit * strength, solver="newton-cholesky", tol=1e-9) for _ in labels.T]
        return [
            one.fit(vectors, marks).predict_proba(vectors)[:, 1] for one, marks in zip(models, labels.T, strict=True)
        ]

    distances = [np.abs(np.stack(fit(strength), axis=1) - found).max() for strength in STRENGTHS]
    assert min(distances) < TOLERANCE, distances


@pytest.mark.any_backend
@pytest.mark.parametrize("kind", ["classification", "multi_label"])
def test_what_cannot_be_learnt_has_its_smoothed_log_odds(kind):
    rng = np.random.default_rng(1)
    vectors = rng.normal(3, 1, (20, 4))
    if kind == "multi_label":
        labels = np.stack([np.zeros(20), np.ones(20), vectors[:, 0] > 3], axis=1).astype(np.float32)
        kernel, bias = fit_head(kind, vectors, labels, 3, rng)
        np.testing.assert_allclose(bias[:2], [np.log(0.5 / 20.5), np.log(20.5 / 0.5)])
        assert not kernel[:, :2].any() and kernel[:, 2].any()
        return
    kernel, bias = fit_head(kind, vectors, np.where(vectors[:, 0] > 3, 2, 0), 3, rng)  # of three, 1 does not occur
    logits = vectors @ kernel + bias
    odds = logits[:, 1] - np.logaddexp(logits[:, 0], logits[:, 2])
    assert not kernel[:, 1].any() and odds.mean() == pytest.approx(np.log(0.5 / 20.5))
    assert np.mean((logits.argmax(axis=1) == 2) == (vectors[:, 0] > 3)) > 0.9
    kernel, bias = fit_head(kind, vectors, np.ones(20, int), 3, rng)  # nothing else occurs
    assert not kernel.any()
    np.testing.assert_allclose(softmax(bias)[[0, 2]] / softmax(bias)[1], 0.5 / 20.5)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("counts", "folds"), [((9, 9), 3), ((9, 2), 2), ((9, 1), 0), ((9, 5, 1), 3), ((3, 2), 0), ((20,), 0)]
)
def test_rare_classes_have_fewer_folds(counts, folds, monkeypatch):
    labels, seen = np.repeat(np.arange(len(counts)), counts), []
    vectors = np.random.default_rng(0).normal(size=(len(labels), 5)) + labels[:, None]
    monkeypatch.setattr(linear_head, "assign_folds", lambda *given: seen.append(given[2]) or assign_folds(*given))
    strengths = []
    real = linear_head._fit_classes
    monkeypatch.setitem(linear_head.FITS, "classification", lambda *given: strengths.append(given[3]) or real(*given))
    first, again = (fit_head("classification", vectors, labels, 3, np.random.default_rng(2)) for _ in range(2))
    assert seen == ([folds] * 2 if folds else [])
    assert len(strengths) == 2 * (folds * len(STRENGTHS) + 1)
    assert folds or set(strengths) == {linear_head.FIXED_STRENGTH}
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, other)  # the same bits
        assert np.isfinite(one).all()


@pytest.mark.any_backend
def test_equal_vectors_give_the_shares_of_the_classes():
    labels = np.repeat([0, 1], [30, 10])
    kernel, bias = fit_head("classification", np.ones((40, 3)), labels, 2, np.random.default_rng(0))
    np.testing.assert_allclose(softmax(np.ones(3) @ kernel + bias), [0.75, 0.25], atol=1e-4)


@pytest.mark.any_backend
def test_long_tables_are_fitted_on_rows_evenly_spaced(tmp_path, monkeypatch):
    assert spread_rows(5, 6).tolist() == [0, 1, 2, 3, 4]
    assert spread_rows(10, 4).tolist() == [0, 2, 5, 7]
    examples = draw_examples("two")
    task = make_task("classification").learn(examples)
    model = load_task_model("classification", write_tiny_model(tmp_path), labels=task.labels, pooling="mean")
    monkeypatch.setattr(starts, "MOST_ROWS", ROWS // 3)
    weights = []
    for chosen in (examples, examples[::3]):
        LinearProbe(model, "classification").start_head(task.encode(TOKENIZER, chosen, LENGTH), 4, SEED)
        weights.append(model.get_layer("classifier").get_weights())
    for one, other in zip(*weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)  # the batches have other widths


@pytest.fixture
def fits(monkeypatch):
    """Rows of each fit of a head."""
    found, real = [], LinearProbe.start_head
    monkeypatch.setattr(
        LinearProbe, "start_head", lambda probe, rows, *given: found.append(len(rows)) or real(probe, rows, *given)
    )
    return found


@pytest.mark.usefixtures("unmoved")
@pytest.mark.parametrize("name", ["two_classes", pytest.param("regression", marks=pytest.mark.any_backend)])
@pytest.mark.any_backend
@pytest.mark.first_form
def test_run_begins_with_the_probe(tmp_path, fits, name):
    """At a rate of almost 0 the published head is the one that was fitted; seed 2 comes on a used classifier."""
    model, settings = write_tiny_model(tmp_path), {"learning_rate": 1e-12, "epochs": 1, "head_start": "probe"}
    both, _ = finetune_case(model, tmp_path / "both", name, seeds=(1, 2), rows=12, **settings)
    alone, _ = finetune_case(model, tmp_path / "alone", name, seeds=(2,), rows=12, **settings)
    drawn, _ = finetune_case(model, tmp_path / "drawn", name, rows=12, **settings | {"head_start": "random"})
    assert fits == [12, 12, 12]
    kernels = [weights["classifier.weight"] for weights in (*both, *alone, *drawn)]
    np.testing.assert_array_equal(kernels[1], kernels[2])
    if kernels[0].shape[0] == 2:
        np.testing.assert_allclose(kernels[0][0], -kernels[0][1], atol=1e-9)
    else:
        assert abs(both[0]["classifier.bias"][0]) > 0.1 > 1e-6 > abs(drawn[0]["classifier.bias"][0])  # it begins at 0
    assert np.abs(kernels[3] - kernels[0]).max() > 1e-3


@pytest.mark.any_backend
def test_head_of_the_directory_is_kept_unless_a_new_one_is_asked_for(tmp_path, fits):
    write_tiny_model(tmp_path)
    case = draw_examples("two")
    labels = make_task("classification").learn(case).labels
    save_model_directory(
        load_task_model("classification", tmp_path / "model", labels=labels),
        tmp_path / "headed",
        tmp_path / "vocab.txt",
    )
    settings = {"head_start": "probe", "epochs": 1, "rows": 12}
    finetune_case(tmp_path / "headed", tmp_path / "kept", "two_classes", **settings)
    assert fits == []
    finetune_case(tmp_path / "headed", tmp_path / "new", "two_classes", **settings, new_head=True)
    assert fits == [12]


@pytest.mark.any_backend
@pytest.mark.slow
def test_each_start_and_count_of_labels_has_a_probe_of_its_own_rows(place, fits):
    settings = {"epochs": 1, "random_max_epochs": 1, "seeds": (1,), "label_counts": [9, "all"]}
    finetune(make_task_config(place, **settings, head_start="probe"), place / "model", place / "probed", lambda _: None)
    assert fits == [77, 77, 9, 9]


@pytest.mark.slow
@pytest.mark.any_backend
def test_killed_run_goes_on_without_another_fit(tmp_path, fits):
    class Killed(BaseException):
        pass

    def die(line):
        if line["step"] == 3:  # of 4, two an epoch
            raise Killed

    model, settings = write_tiny_model(tmp_path), {"head_start": "probe", "rows": 12, "dropout_rate": 0.2}
    whole, _ = finetune_case(model, tmp_path / "whole", "two_classes", **settings)
    with pytest.raises(Killed):
        finetune_case(model, tmp_path / "killed", "two_classes", die, **settings)
    assert fits == [12, 12]
    with pytest.raises(ValueError, match=re.escape("another finetuning.head_start (probe, now random). Undo")):
        finetune_case(model, tmp_path / "killed", "two_classes", **settings | {"head_start": "random"})
    resumed, _ = finetune_case(model, tmp_path / "killed", "two_classes", **settings)
    assert fits == [12, 12]
    for name, weights in whole[0].items():
        np.testing.assert_array_equal(resumed[0][name], weights)


@pytest.mark.any_backend
def test_setting_goes_with_tasks_of_whole_texts():
    task = {"kind": "token_classification", "train": "a", "dev": "b"}
    with pytest.raises(ValueError, match="head_start=probe, kind=token_classification. Leave it out"):
        PipelineConfig(task=task, finetuning={"head_start": "probe"})
    assert PipelineConfig(task=task, finetuning={"head_start": "random"}).finetuning.head_start == "random"
    assert PipelineConfig(finetuning={"head_start": "probe"}).finetuning.head_start == "probe"


@pytest.mark.any_backend
def test_head_on_vectors_that_hardly_differ_is_bounded():
    """Of a barely trained encoder: texts differ by a thousandth of their length, and dropout moves them by a tenth."""
    rng = np.random.default_rng(0)
    common, labels = rng.normal(size=64), np.arange(200) % 2
    vectors = common + 1e-3 * (rng.normal(size=(200, 64)) + 2 * labels[:, None] * rng.normal(size=64))
    kernel, _ = fit_head("classification", vectors, labels, 2, np.random.default_rng(1))
    start = fit_start("classification", vectors, labels, 2, np.random.default_rng(1))
    length = np.linalg.norm(vectors, axis=1).mean()
    assert np.linalg.norm(kernel, axis=0).max() * length > 1000  # what it is without the check
    assert start.head is None and "nearly equal" in start.reason


@pytest.mark.any_backend
def test_head_survives_a_step_that_moves_all_vectors_alike():
    """Of vectors that are five times as long as they are apart: 0.1 of the length either way changes few answers."""
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 2
    vectors = rng.normal(size=(200, 64)) + labels[:, None] * rng.normal(size=64)
    vectors += 5 * np.linalg.norm(vectors - vectors.mean(axis=0), axis=1).mean() * np.eye(64)[0]
    kernel, bias = fit_start("classification", vectors, labels, 2, np.random.default_rng(1)).head
    length = np.linalg.norm(vectors, axis=1).mean()
    for move in (0.1 * length * np.eye(64)[0], -0.1 * length * np.eye(64)[0]):
        assert np.mean(((vectors + move) @ kernel + bias).argmax(axis=1) == labels) > 0.8


@pytest.mark.any_backend
@pytest.mark.parametrize("kind", ["classification", "multi_label", "regression"])
def test_head_that_learns_nothing_starts_anew(kind):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(60, 40))
    labels = {
        "classification": rng.integers(0, 3, 60),
        "multi_label": rng.integers(0, 2, (60, 2)).astype("float32"),
        "regression": rng.normal(size=60),
    }[kind]
    outputs = {"classification": 3, "multi_label": 2, "regression": 1}[kind]
    first, again = (fit_start(kind, vectors, labels, outputs, np.random.default_rng(1)) for _ in range(2))
    assert (first.head is None) == (again.head is None) and first.reason == again.reason
    if first.head is not None:  # the folds may have told it to use next to nothing
        assert np.linalg.norm(first.head[0]) < 1
        np.testing.assert_array_equal(first.head[0], again.head[0])


@pytest.mark.any_backend
def test_a_good_head_is_that_of_the_probe_without_a_word():
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 3
    vectors = rng.normal(size=(90, 16)) + 2 * np.eye(16)[labels]
    start = fit_start("classification", vectors, labels, 3, np.random.default_rng(1))
    wanted = fit_head("classification", vectors, labels, 3, np.random.default_rng(1))
    assert start.reason == ""
    for found, expected in zip(start.head, wanted, strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.any_backend
def test_too_many_classes_have_no_probe():
    labels = np.arange(7_000)
    start = fit_start("classification", np.ones((7_000, 768), "float32"), labels, 7_000, np.random.default_rng(1))
    assert start.head is None and "7,000 classes are too many" in start.reason

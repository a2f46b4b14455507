"""A `.keras` file goes on training in another process, to the weights of a run that was not interrupted."""

import json
import os
import subprocess
import sys

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.training.optimizers.adam import make_guarded_optimizer, make_optimizer
from keras_bert_flow.training.optimizers.schedules import WarmupDecay
from tests.oracles.small_bert import SMALL, make_inputs
from tests.oracles.task_models import CASES, make_task_inputs, make_task_labels
from tests.patience import PATIENCE_SECONDS

STILL = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0, "num_layers": 1}  # Keras saves no dropout seeds
STEPS = 5
CHILD = """
import sys, json, os
if os.environ["KERAS_BACKEND"] != "tensorflow":
    sys.modules["tensorflow"] = None  # Keras imports it to look for its shapes in a configuration, which takes seconds
import keras, keras_bert_flow
import numpy as np
assert not [name for name in sys.modules if name.startswith("keras_bert_flow.models")]
for name, is_weighted in json.load(open(sys.argv[1] + "/cases.json")).items():
    path = f"{sys.argv[1]}/{name}"
    model = keras.saving.load_model(path + ".keras")
    rows = np.load(path + ".npz")
    x = {key[2:]: rows[key] for key in rows if key.startswith("x_")}
    y = {key[2:]: rows[key] for key in rows if key.startswith("y_")}
    y = y.get("", y) or None if not isinstance(y.get(""), np.ndarray) else y[""]
    w = {key[2:]: rows[key] for key in rows if key.startswith("w_")} or None
    for _ in range(5):
        model.train_on_batch(x, y, sample_weight=w)
    np.savez(path + ".after.npz", *model.get_weights())
"""


def make_pretraining_case():
    model = kbf.BertPretrainer(kbf.BertBackbone(**SMALL | STILL))
    rng = np.random.default_rng(1)
    y = {"mlm": rng.integers(0, 50, (4, 3)), "nsp": rng.integers(0, 2, (4,))}
    inputs = make_inputs(masks_per_sequence=3)
    # Only what stands on real tokens counts: with packed tokens, as PyTorch trains, padding is 0.
    is_real = np.take_along_axis(inputs["padding_mask"], inputs["mask_positions"], axis=1).astype("float32")
    return model, inputs, y, {"mlm": is_real, "nsp": inputs["padding_mask"][:, 0].astype("float32")}


def make_masked_case():
    model = kbf.MaskedLM(kbf.BertBackbone(**SMALL | STILL, use_pooler=False))
    y = np.random.default_rng(1).integers(0, 50, (4, 3))
    return model, make_inputs(masks_per_sequence=3), y, None


def make_task_case(kind):
    model = CASES[kind].make(kbf.BertBackbone(**SMALL | STILL, use_pooler=CASES[kind].use_pooler))
    config = model.get_config() | ({"dropout_rate": 0.0} if "dropout_rate" in model.get_config() else {})
    return type(model).from_config(config), make_task_inputs(kind), make_task_labels(kind), None


SLOWER = {"token_embedding/embeddings": 0.3, "encoder_block_0/output/kernel": 0.7}
SCHEDULE = {"peak": 0.01, "warmup_steps": 4, "total_steps": 12}
OPTIMIZERS = {
    "adamw_public": lambda: kbf.adamw(0.01, total_steps=12, warmup_steps=4, weight_decay=0.5),
    "adamw_by_depth": lambda: make_optimizer("adamw", WarmupDecay(**SCHEDULE), weight_decay=0.5, rate_factors=SLOWER),
    "bert_adam": lambda: make_optimizer("bert_adam", WarmupDecay(**SCHEDULE, decay="cosine"), 0.5),
    "lamb": lambda: make_optimizer("lamb", WarmupDecay(**SCHEDULE), 0.5, rate_factors=SLOWER),
    "accumulating": lambda: make_optimizer("adamw", WarmupDecay(**SCHEDULE), 0.5, accumulate_batches=2),
    "guarded": lambda: make_guarded_optimizer("adamw", WarmupDecay(**SCHEDULE), 0.5, max_skipped_steps=3),
    "keras_named": lambda: "adam",
}


def save_case(folder, name, model, x, y, w):
    """Train, save, train on; return the weights."""
    for step in range(2 * STEPS):
        if step == STEPS:
            model.save(folder / f"{name}.keras")
        model.train_on_batch(x, y, sample_weight=w)
    labels = {} if y is None else y if isinstance(y, dict) else {"": y}
    arrays = {f"x_{key}": value for key, value in x.items()} | {f"y_{key}": value for key, value in labels.items()}
    np.savez(folder / f"{name}.npz", **arrays, **{f"w_{key}": value for key, value in (w or {}).items()})
    return model.get_weights()


def resume_in_child(folder, expected, backend=None, atol=0.0):
    (folder / "cases.json").write_text(json.dumps(dict.fromkeys(expected, True)))
    done = subprocess.run(
        [sys.executable, "-c", CHILD, folder],
        env=os.environ | {"KERAS_BACKEND": backend or keras.backend.backend()},
        capture_output=True,
        text=True,
        timeout=3 * PATIENCE_SECONDS,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for name, weights in expected.items():
        after = np.load(folder / f"{name}.after.npz")
        for place, weight in enumerate(weights):
            np.testing.assert_allclose(after[f"arr_{place}"], weight, rtol=0, atol=atol, err_msg=f"{name}, {place}")


def save_pretrainer(folder):
    case = make_pretraining_case()
    case[0].compile(optimizer=OPTIMIZERS["adamw_public"]())
    return {"pretrainer": save_case(folder, "pretrainer", *case)}


@pytest.mark.slow
@pytest.mark.skipif(keras.backend.backend() == "torch", reason="there the next test does the same")
def test_saved_pretrainer_trains_on_in_another_process(tmp_path):
    resume_in_child(tmp_path, save_pretrainer(tmp_path))


@pytest.mark.slow
@pytest.mark.any_backend
def test_saved_models_train_on_in_another_process(tmp_path):
    expected = save_pretrainer(tmp_path)
    cases = {kind: make_task_case(kind) for kind in CASES if kind != "embedding"} | {"masked_lm": make_masked_case()}
    for name, case in cases.items():
        case[0].compile()
        expected[name] = save_case(tmp_path, name, *case)
    for name, make in OPTIMIZERS.items():
        case = make_pretraining_case()
        case[0].compile(optimizer=make(), auto_scale_loss=False)
        expected[name] = save_case(tmp_path, name, *case)
    resume_in_child(tmp_path, expected)


@pytest.mark.any_backend
def test_saved_model_keeps_the_arguments_of_compile(tmp_path):
    model, *_ = make_task_case("classification")
    optimizer = keras.optimizers.SGD(0.1, weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_list=[model.weights[2]])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, loss_weights=[0.5], weighted_metrics=[], run_eagerly=True, auto_scale_loss=False)
    model.save(tmp_path / "x.keras")
    twin = keras.saving.load_model(tmp_path / "x.keras")
    assert twin.get_compile_config() == model.get_compile_config()
    assert [v.path for v in twin.weights if not twin.optimizer._use_weight_decay(v)] == [model.weights[2].path]


@pytest.mark.any_backend
def test_uncompiled_model_stays_uncompiled(tmp_path):
    model, *_ = make_task_case("classification")
    model.save(tmp_path / "x.keras")
    assert not keras.saving.load_model(tmp_path / "x.keras").compiled


@pytest.mark.any_backend
def test_model_checkpoint_file_trains_on(tmp_path):
    model, x, y, _ = make_task_case("classification")
    model.compile()
    model.fit(x, y, verbose=0, callbacks=[keras.callbacks.ModelCheckpoint(tmp_path / "x.keras")])
    twin = keras.saving.load_model(tmp_path / "x.keras")
    twin.fit(x, y, verbose=0)
    assert int(twin.optimizer.iterations) == 2


FREEZERS = {
    "backbone": lambda model: setattr(model.backbone, "trainable", False),
    "model": lambda model: setattr(model, "trainable", False),
    "layers": lambda model: [
        setattr(model.backbone.get_layer(name), "trainable", False) for name in ("token_embedding", "encoder_block_0")
    ],
    "weights": lambda model: [setattr(weight, "trainable", weight.name == "bias") for weight in model.weights],
    "sublayer": lambda model: setattr(model.backbone.get_layer("encoder_block_0").attention, "trainable", False),
    "head": lambda model: setattr(model.get_layer("classifier"), "trainable", False),
}


@pytest.mark.any_backend
@pytest.mark.parametrize("frozen", FREEZERS)
@pytest.mark.first_form
def test_frozen_weights_stay_frozen_in_a_file(tmp_path, frozen):
    model, x, y, _ = make_task_case("classification")
    FREEZERS[frozen](model)
    model.compile(optimizer=OPTIMIZERS["adamw_public"]())
    before = model.get_weights()
    model.train_on_batch(x, y)
    model.save(tmp_path / "x.keras")
    twin = keras.saving.load_model(tmp_path / "x.keras")
    assert [v.path for v in twin.trainable_weights] == [v.path for v in model.trainable_weights]
    assert twin.backbone.trainable == model.backbone.trainable and twin.trainable == model.trainable
    assert twin.get_config() == model.get_config()
    for each in (model, twin):
        each.train_on_batch(x, y)
    for weight, mine, other, first in zip(model.weights, model.get_weights(), twin.get_weights(), before, strict=True):
        np.testing.assert_array_equal(mine, other)
        is_trained = any(weight is trained for trained in model.trainable_weights)
        assert is_trained or np.array_equal(mine, first)
    model.trainable = twin.trainable = True
    assert [v.path for v in twin.trainable_weights] == [v.path for v in model.trainable_weights]
    if keras.backend.backend() != "tensorflow":  # where Keras does not reach the layers of a model within another
        assert len(twin.trainable_weights) == len(twin.weights)


@pytest.mark.any_backend
def test_nothing_is_said_of_freezing_where_nothing_is_frozen():
    model, *_ = make_task_case("classification")
    assert "frozen" not in model.get_config() and "frozen" not in model.backbone.get_config()


def exclude_some():
    """Return an optimizer of Keras' that was told itself what not to decay."""
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.5)
    optimizer.exclude_from_weight_decay(var_names=["bias", "token_embedding"])
    return optimizer


@pytest.mark.any_backend
@pytest.mark.parametrize("make", [lambda: None, exclude_some], ids=["default", "own"])
def test_clone_of_a_compiled_model_trains_alike(make):
    model, x, y, _ = make_task_case("classification")
    model.compile(optimizer=make())
    clone = keras.models.clone_model(model)
    clone.optimizer.build(clone.trainable_variables)
    clone.set_weights(model.get_weights())
    decayed = [[each.optimizer._use_weight_decay(weight) for weight in each.weights] for each in (model, clone)]
    assert decayed[0] == decayed[1] and set(decayed[0]) == {True, False}
    for _ in range(2):
        losses = [each.train_on_batch(x, y) for each in (model, clone)]
    assert losses[0] == losses[1]
    for mine, other in zip(model.get_weights(), clone.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.any_backend
@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_saved_model_keeps_its_mixed_precision(tmp_path, policy):
    backbone = kbf.BertBackbone(**SMALL | STILL, dtype=policy)
    model = kbf.TextClassifier(backbone, num_classes=3, dropout_rate=0.0)
    _, x, y, _ = make_task_case("classification")
    model.compile()
    model.train_on_batch(x, y)
    model.save(tmp_path / "x.keras")
    twin = keras.saving.load_model(tmp_path / "x.keras")
    policies = [[layer.dtype_policy.name for layer in each.backbone.layers] for each in (model, twin)]
    assert policies[0] == policies[1] and twin.backbone.dtype_policy.name == twin.dtype_policy.name == policy
    assert [weight.dtype for weight in twin.weights] == ["float32"] * len(model.weights)
    assert type(twin.optimizer) is type(model.optimizer)
    for each in (model, twin):
        each.train_on_batch(x, y)
    for mine, other in zip(model.optimizer.variables, twin.optimizer.variables, strict=True):
        np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (mine, other)))
    for mine, other in zip(model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, other)


@pytest.mark.slow
@pytest.mark.any_backend
@pytest.mark.parametrize(
    "backend", [name for name in ("jax", "tensorflow", "torch") if name != keras.backend.backend()]
)
def test_saved_models_train_on_with_another_backend(tmp_path, backend):
    pytest.importorskip(backend)
    expected = save_pretrainer(tmp_path)
    model, inputs, labels, _ = make_task_case("token_classification")
    model.compile()
    labels = np.where(inputs["padding_mask"], labels, -1)  # no label: as above, only real tokens count
    expected["tags"] = save_case(tmp_path, "tags", model, inputs, labels, None)
    # Sums in another order: 1e-7 of float32, which five steps of Adam at a rate of 0.01 multiply.
    resume_in_child(tmp_path, expected, backend=backend, atol=1e-4)

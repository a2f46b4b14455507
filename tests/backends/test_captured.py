"""A recorded step of PyTorch makes the numbers of an eager one, whatever its batches are."""

import logging

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.backends.captured import CapturedStep
from tests.oracles.small_bert import SMALL

pytestmark = pytest.mark.skipif(keras.backend.backend() != "torch", reason="the others compile their steps")
VOCABULARY = SMALL["vocabulary_size"]


def make_batch(seed, length=12, padding=0):
    rng = np.random.default_rng(seed)
    real = np.ones((4, length), "int32")
    real[:, length - padding :] = 0
    x = {
        "token_ids": rng.integers(5, VOCABULARY, (4, length)).astype("int32") * real,
        "segment_ids": np.zeros((4, length), "int32"),
        "padding_mask": real,
        "mask_positions": rng.integers(1, length - padding, (4, 2)).astype("int32"),
    }
    y = {"mlm": rng.integers(5, VOCABULARY, (4, 2)).astype("int32"), "nsp": rng.integers(0, 2, 4).astype("int32")}
    return x, y, {"mlm": np.ones((4, 2), "float32"), "nsp": np.ones(4, "float32")}


def make_model(jit_compile, dropout_rate=0.1, **sizes):
    keras.utils.set_random_seed(1)
    rates = {"dropout_rate": dropout_rate, "attention_dropout_rate": dropout_rate}
    model = kbf.BertPretrainer(kbf.BertBackbone(**SMALL | rates | sizes))
    optimizer = kbf.adamw(learning_rate=1e-3, warmup_steps=2, total_steps=100)
    model.compile(optimizer=optimizer, jit_compile=jit_compile)
    return model


def train(model, batches):
    return [model.train_on_batch(*batch, return_dict=True) for batch in batches]


def test_recorded_steps_have_the_bits_of_eager_ones():
    batches = [make_batch(seed) for seed in range(8)]
    eager, recorded = make_model(False), make_model(True)
    logs = train(eager, batches)
    # As where a run goes on: some of its steps are those of the other.
    train(recorded, batches[:3])
    model = make_model(False)
    for ours, theirs in zip(model.variables, recorded.variables, strict=True):
        ours.assign(theirs)
    assert train(recorded, batches[3:])[-1] == logs[-1]
    for ours, theirs in zip(recorded.variables, eager.variables, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(ours), keras.ops.convert_to_numpy(theirs))
    assert list(recorded.train_function._programs.values()).count(None) == 0


def test_padding_and_widths_change_rounding_alone():
    batches = [make_batch(seed, length=8 + 4 * (seed % 2), padding=seed % 3) for seed in range(50)]
    eager, recorded = make_model(False, dropout_rate=0.0), make_model(True, dropout_rate=0.0)
    for one, other in zip(train(eager, batches), train(recorded, batches), strict=True):
        # Sums over rows of zeros in another order; eager steps leave these rows out.
        assert other == pytest.approx(one, rel=1e-6)
    assert len(recorded.train_function._programs) == 2


def test_rematerialised_and_shared_blocks_are_recorded():
    batches = [make_batch(seed) for seed in range(3)]
    found = []
    for jit_compile in (False, True):
        model = make_model(jit_compile, num_layers=2)
        model.backbone.set_rematerialised()
        found.append(train(model, batches)[-1])
    assert found[0] == found[1]
    assert [*model.train_function._programs.values()] != [None]


def test_what_cannot_be_recorded_runs_eagerly_and_is_said_once(caplog):
    class Stubborn(keras.losses.Loss):
        def call(self, y_true, y_pred):
            loss = keras.ops.mean(y_pred**2)
            return loss if float(loss) > 0 else -loss

    model, batches = make_model(True), [make_batch(0), make_batch(1)]
    model.compile(optimizer="sgd", loss={"mlm": Stubborn(), "nsp": Stubborn()}, jit_compile=True)
    with caplog.at_level(logging.WARNING):
        assert all(np.isfinite(logs["loss"]) for logs in train(model, batches))
    assert [record.message.startswith("A step that cannot be recorded") for record in caplog.records] == [True]


def test_fit_and_the_other_calls_work():
    model = kbf.TextClassifier(kbf.BertBackbone(**SMALL | {"num_layers": 1}), 2)
    model.compile(optimizer="adam", jit_compile=True)
    x, y, _ = make_batch(0)
    del x["mask_positions"]
    history = model.fit(x, y["nsp"], epochs=3, batch_size=2, verbose=0, validation_data=(x, y["nsp"])).history
    assert isinstance(model.train_function, CapturedStep)
    assert len(history["loss"]) == 3 and np.isfinite(history["val_loss"]).all()
    assert model.predict(x, verbose=0).shape == (4, 2)


@pytest.mark.parametrize("optimizer", ["guarded", "accumulating"])
@pytest.mark.first_form
def test_optimizers_of_ours_take_recorded_gradients(optimizer):
    from keras_bert_flow.training.optimizers.guard import GuardedOptimizer

    batches, found = [make_batch(seed) for seed in range(4)], []
    for jit_compile in (False, True):
        model = make_model(jit_compile)
        inner = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2 if optimizer == "accumulating" else None)
        chosen = GuardedOptimizer(inner, max_skipped_steps=2) if optimizer == "guarded" else inner
        model.compile(optimizer=chosen, jit_compile=jit_compile)
        found.append(train(model, batches)[-1])
    assert found[0] == found[1]


def test_nothing_in_a_recorded_step_asks_for_a_value():
    model = make_model(True)
    train(model, [make_batch(0)])
    [program] = model.train_function._programs.values()
    asked = {"_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal"}
    assert not [
        node
        for node in program._compute.graph.nodes
        if str(node.target).split(".")[1:2] and str(node.target).split(".")[1] in asked
    ]

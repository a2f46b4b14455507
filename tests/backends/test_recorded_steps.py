"""A recorded step of PyTorch makes the numbers of an eager one, whatever its batches are."""

import logging
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
from keras import ops

import keras_bert_flow as kbf
from keras_bert_flow.backends import recorded as recording
from keras_bert_flow.backends.recorded import CapturedStep
from keras_bert_flow.models.reentrant import ReentrantModel
from tests.oracles.small_bert import SMALL

pytestmark = pytest.mark.skipif(keras.backend.backend() != "torch", reason="the others compile their steps")
VOCABULARY = SMALL["vocabulary_size"]


@pytest.fixture(autouse=True)
def uncompiled(request, monkeypatch):
    """Run what is recorded as it is, operation by operation, so that its numbers have the bits of an eager step's."""
    if "compiled" not in request.keywords:
        monkeypatch.setattr(recording, "_compile", lambda graph, given: graph)


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
    train(recorded, batches[:1])
    assert len(recorded.train_function._programs) == 1  # a resumed run begins as it went on
    train(recorded, batches[1:3])
    model = make_model(False)
    for ours, theirs in zip(model.variables, recorded.variables, strict=True):
        ours.assign(theirs)
    assert train(recorded, batches[3:])[-1] == logs[-1]
    for ours, theirs in zip(recorded.variables, eager.variables, strict=True):
        np.testing.assert_array_equal(keras.ops.convert_to_numpy(ours), keras.ops.convert_to_numpy(theirs))
    assert len(recorded.train_function._programs) == 1


@pytest.mark.slow
def test_padding_and_widths_change_rounding_alone():
    batches = [make_batch(seed, length=8 + 4 * (seed % 2), padding=seed % 3) for seed in range(50)]
    eager, recorded = make_model(False, dropout_rate=0.0), make_model(True, dropout_rate=0.0)
    for one, other in zip(train(eager, batches), train(recorded, batches), strict=True):
        # Sums over rows of zeros in another order; eager steps leave these rows out.
        assert other == pytest.approx(one, rel=1e-6)
    assert len(recorded.train_function._programs) == 2


@pytest.mark.slow
def test_rematerialised_and_shared_blocks_are_recorded():
    batches = [make_batch(seed) for seed in range(3)]
    found = []
    for jit_compile in (False, True):
        model = make_model(jit_compile, num_layers=2)
        model.backbone.set_rematerialised()
        found.append(train(model, batches)[-1])
    assert found[0] == found[1]
    assert len(model.train_function._programs) == 1


def test_what_cannot_be_recorded_runs_eagerly_and_is_said_once(caplog):
    class Stubborn(keras.losses.Loss):
        def call(self, y_true, y_pred):
            loss = keras.ops.mean(y_pred**2)
            return loss if float(loss) > 0 else -loss

    model, batches = make_model(True), [make_batch(seed, length=8 + seed % 2) for seed in range(6)]
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


@pytest.mark.slow
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
    train(model, [make_batch(0), make_batch(1)])
    [program] = model.train_function._programs.values()
    asked = {"_local_scalar_dense", "item", "nonzero", "is_nonzero", "equal"}
    assert not [
        node
        for node in program.compute.graph.nodes
        if str(node.target).split(".")[1:2] and str(node.target).split(".")[1] in asked
    ]


class Previous(keras.layers.Layer):
    """Adds what the mean of the last batch was; the variable that is read first is the later one."""

    def build(self, shape):
        options = {"shape": (), "initializer": "zeros", "trainable": False}
        self.mean, self.before = self.add_weight(name="mean", **options), self.add_weight(name="before", **options)

    def call(self, inputs):
        self.before.assign(self.mean)
        self.mean.assign(ops.mean(inputs))
        return inputs + self.before


class Counted(keras.losses.Loss):
    """Has a variable of its own, which Keras does not find."""

    def __init__(self):
        super().__init__()
        self.count = keras.Variable(0.0, trainable=False)

    def call(self, labels, outputs):
        self.count.assign_add(1.0)
        return self.count * ops.mean((labels - outputs) ** 2)


class Highest(keras.metrics.Metric):
    """Returns its variable itself, as an example of Keras' documentation does."""

    def __init__(self):
        super().__init__(name="highest")
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, labels, outputs, sample_weight=None):
        self.value.assign(ops.maximum(self.value, ops.max(outputs)))

    def result(self):
        return self.value


def wrap_module():
    """Return a layer whose call reads the weights of a PyTorch module, for which Keras has variables as well."""
    import torch

    class Wrapper(keras.layers.TorchModuleWrapper):
        def compute_output_shape(self, *shapes, **named_shapes):
            return (None, 8)

    return Wrapper(torch.nn.Linear(8, 8))


class OwnStep(ReentrantModel):
    def train_step(self, data):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        return super().train_step((x, -y))


def squares(labels, outputs):
    return ops.mean((labels - outputs) ** 2)


def weigh_by_numpy(labels, outputs):
    errors = np.abs(ops.convert_to_numpy(labels) - ops.convert_to_numpy(outputs))
    return squares(labels, outputs) / float(1 + errors.mean())


def weigh_by_list(labels, outputs):
    return squares(labels, outputs) * sum(labels.reshape(-1).tolist())


def compare_tensors(labels, outputs):
    import torch

    return squares(labels, outputs) * (1.0 if torch.equal(labels, outputs) else 2.0)


def select_positive(labels, outputs):
    selected = ((labels - outputs) ** 2)[labels > 0]
    return ops.sum(selected) / (1 + len(selected))


def draw_without_seed(labels, outputs):
    return squares(labels, outputs) * keras.random.uniform(())


def draw_by_torch(labels, outputs):
    import torch

    return squares(labels, outputs) * torch.rand(())


OWN_PARTS = {
    "no part": {},
    "batch normalisation": {"layer": keras.layers.BatchNormalization},
    "dropout of Keras": {"layer": lambda: keras.layers.Dropout(0.5, seed=1)},
    "loss of a layer": {"layer": lambda: keras.layers.ActivityRegularization(0.1)},
    "regularised weight": {"layer": lambda: keras.layers.Dense(8, kernel_regularizer="l2")},
    "state that moves on": {"layer": Previous},
    "weights of PyTorch": {"layer": wrap_module},
    "loss with a variable": {"loss": Counted},
    "metric that is a variable": {"metric": Highest},
    "own step": {"kind": OwnStep},
} | {
    function.__name__: {"loss": lambda function=function: function}
    for function in (weigh_by_numpy, weigh_by_list, compare_tensors, select_positive, draw_without_seed, draw_by_torch)
}


@pytest.mark.parametrize("parts", OWN_PARTS.values(), ids=OWN_PARTS)
@pytest.mark.first_form
def test_parts_of_ones_own_are_not_frozen_into_a_recording(parts):
    def train_with(jit_compile):
        keras.utils.set_random_seed(1)
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(8, activation="tanh")(inputs)
        outputs = keras.layers.Dense(1)(parts.get("layer", keras.layers.Identity)()(hidden))
        model = parts.get("kind", ReentrantModel)(inputs, outputs)
        loss, metric = parts.get("loss", lambda: squares)(), parts.get("metric", keras.metrics.MeanAbsoluteError)()
        model.compile(optimizer=keras.optimizers.SGD(0.1), loss=loss, metrics=[metric], jit_compile=jit_compile)
        rng = np.random.default_rng(0)
        batches = [(rng.normal(size=(4, 6)).astype("float32"), rng.normal(size=(4, 1))) for _ in range(5)]
        return train(model, batches), [ops.convert_to_numpy(weight) for weight in model.weights]

    (logs, weights), (recorded_logs, recorded_weights) = train_with(False), train_with(True)
    assert recorded_logs == logs
    for ours, theirs in zip(recorded_weights, weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow
def test_a_variable_that_is_read_as_a_number_is_not_frozen():
    found = []
    for jit_compile in (False, True):
        model, scale = make_model(jit_compile), keras.Variable(1.0, trainable=False)
        losses = dict.fromkeys(("mlm", "nsp"), lambda _, outputs, scale=scale: float(scale) * ops.mean(outputs**2))
        model.compile(optimizer="sgd", loss=losses, jit_compile=jit_compile)
        found.append([])
        for seed in range(4):
            scale.assign(seed)
            found[-1] += train(model, [make_batch(seed)])
    assert found[0] == found[1]


@pytest.mark.slow
def test_threads_record_one_after_another():
    models, batches = [make_model(True) for _ in range(3)], [make_batch(seed) for seed in range(3)]
    with ThreadPoolExecutor(len(models)) as pool:
        first, *others = pool.map(lambda model: train(model, batches), models)
    assert others == [first, first]
    assert [len(model.train_function._programs) for model in models] == [1, 1, 1]


def test_several_steps_per_call_are_refused_as_by_keras():
    model = make_model(True)
    model.compile(optimizer="sgd", jit_compile=True, steps_per_execution=2)
    with pytest.raises(ValueError, match="steps_per_execution"):
        model.fit(*make_batch(0)[:2], verbose=0)


@pytest.mark.slow
def test_shapes_beyond_the_most_run_eagerly(monkeypatch):
    monkeypatch.setattr(recording, "MOST_PROGRAMS", 1)
    model = make_model(True)
    batches = [make_batch(0, length=8), make_batch(0, length=8), make_batch(1, length=12), make_batch(1, length=12)]
    assert all(np.isfinite(logs["loss"]) for logs in train(model, batches))
    assert len(model.train_function._programs) == 1

"""Joint and progressive transfer of layers: what moves in which step, over kills, and what is refused before work."""

import json
import re

import keras
import numpy as np
import pytest
from keras import ops

import keras_bert_flow as kbf
from keras_bert_flow.backends.values import read_variable
from keras_bert_flow.checks.run import check_distillation_stage
from keras_bert_flow.config.loading import make_config
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.pretraining import DistillationConfig, ModelConfig, PretrainingConfig
from keras_bert_flow.results.stages.models import distillation_key, distillation_settings
from keras_bert_flow.text.objectives.mlm import Distillation, LayerTransfer
from keras_bert_flow.training.distillation import distill, make_distiller
from keras_bert_flow.training.loop.identity import distillation_identity
from keras_bert_flow.training.loop.logs import read_log
from keras_bert_flow.training.optimizers import guard
from keras_bert_flow.training.optimizers.adam import make_guarded_optimizer
from keras_bert_flow.training.optimizers.schedules import StagedWarmup, WarmupDecay
from keras_bert_flow.training.pretraining.validation import PlateauWatch
from tests.contracts import randomise
from tests.oracles.objective_records import write_objective_records
from tests.oracles.tiny_records import make_tiny_config

pytestmark = pytest.mark.any_backend

SHAPE = {"family": "mobilebert", "num_layers": 2, "hidden_dim": 16, "num_heads": 2, "max_positions": 16}
TEACHER = SHAPE | {"intermediate_dim": 32, "hidden_act": "gelu", "use_pooler": False, "vocabulary_size": 40}
TEACHER |= {"embedding_dim": 8, "bottleneck_dim": 24, "num_feed_forwards": 1, "normalization": "layer_norm"}
TEACHER |= {"has_query_bottleneck": False}
STUDENT = SHAPE | {"intermediate_dim": 12, "hidden_act": "relu", "dropout_rate": 0.0}
STUDENT |= {"options": {"embedding_dim": 8, "bottleneck_dim": 8, "num_feed_forwards": 2}}
TRANSFER = {"transfer": "progressive", "layer_transfer_steps": 2, "start": "embeddings", "hidden_state_weight": 0.0}
TRANSFER |= {"feature_map_weight": 10.0, "attention_map_weight": 1.0, "temperature": 1.0}
STEPS = {"batch_size": 8, "total_steps": 6, "warmup_steps": 0, "learning_rate": 0.01}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return write_objective_records(tmp_path_factory.mktemp("transfer") / "records", "mlm")


@pytest.fixture(scope="module")
def teacher(records):
    model = randomise(kbf.MaskedLM(kbf.Backbone(**TEACHER)))
    model.save_to_preset(records.parent / "teacher", vocabulary_path=records / "vocab.txt")
    return records.parent / "teacher"


def make_transfer(pretraining=None, **settings):
    intervals = {"batch_size": 8, "log_every_steps": 2, "evaluate_every_steps": 6, "checkpoint_every_steps": 6}
    config = make_tiny_config(model=SHAPE | {"intermediate_dim": 24}, **intervals | (pretraining or {}))
    student = settings.pop("student", STUDENT)
    settings = STEPS | TRANSFER | settings | {"student": ModelConfig(**student)}
    return config.model_copy(update={"distillation": DistillationConfig(**settings)})


class Snapshots(keras.callbacks.Callback):
    """The weights and the moments before the first step and after each line of the log."""

    def __init__(self):
        super().__init__()
        self.taken = []

    def take(self):
        weights = {weight.path: read_variable(weight).copy() for weight in self.model.trainable_variables}
        inner = self.model.optimizer.inner_optimizer
        places = [*getattr(inner, "_momentums", []), *getattr(inner, "_velocities", [])]
        moments = {place.path: read_variable(place).copy() for place in places}
        self.taken.append((weights, moments))

    def on_train_begin(self, logs=None):
        self.take()

    def on_epoch_end(self, epoch, logs=None):
        self.take()


def list_moved(before, after):
    return {path for path in before if not np.array_equal(before[path], after[path])}


def find_owner(path):
    """Return the number of the block in the path of a weight, or of a moment; None for any other."""
    found = re.search(r"encoder_block_(\d)", path)
    return found and int(found[1])


FORMS = [
    ("progressive", {}),
    ("joint", {}),
    ("progressive", {"optimizer": "lamb"}),
    ("progressive", {"optimizer": "muon"}),
    ("progressive", {"non_finite": "skip", "accumulate_batches": 2}),
]


@pytest.mark.parametrize(("transfer", "pretraining"), FORMS, ids=["adamw", "joint", "lamb", "muon", "skip"])
@pytest.mark.first_form
def test_each_stage_moves_its_layer_alone(records, teacher, tmp_path, transfer, pretraining):
    snapshots = Snapshots()
    parts = pretraining.get("accumulate_batches", 1)
    config = make_transfer(pretraining, transfer=transfer, accumulate_batches=parts)
    output = distill(config, records, teacher, tmp_path / "out", lambda line: None, callbacks=[snapshots])
    owners = [{0}, {1}] if transfer == "progressive" else [{0, 1}] * 2
    for (before, moments), (after, later), owner in zip(snapshots.taken, snapshots.taken[1:], owners, strict=False):
        for path in before:
            is_due = find_owner(path) in owner
            # The gradient of a key's bias is 0 but for rounding.
            assert path.endswith("key/bias") or np.array_equal(before[path], after[path]) != is_due, path
        assert {find_owner(path) for path in list_moved(moments, later)} == owner
    (before, _), (after, _) = snapshots.taken[2:]
    still = {*before} - list_moved(before, after)
    assert [path for path in still if not path.endswith(("key/bias", "position_embedding"))] == []
    model = kbf.MaskedLM.from_preset(output / "model")
    assert model.backbone.normalization == "no_norm"
    lines = read_log(output)
    assert [line["mlm_loss"] > 0 for line in lines] == [False, False, True]
    assert [line["feature_map_loss"] > 0 for line in lines] == [True, True, False]
    metrics = json.loads((output / "metrics.json").read_text())
    assert min(metrics["feature_map_loss"], metrics["attention_map_loss"], metrics["masked_lm_loss"]) > 0


def test_student_begins_with_the_embeddings_and_the_head_of_its_teacher(teacher):
    model = make_distiller(make_transfer(), teacher)
    ours, theirs = (
        {weight.path: read_variable(weight) for weight in model.weights} for model in (model.student, model.teacher)
    )
    for path in ("token_embedding/embeddings", "embeddings/projection/kernel", "mlm/bias", "mlm_extension/kernel"):
        np.testing.assert_array_equal(ours[path], theirs[path])
    assert set(ours["embeddings/norm/gamma"]) == {1.0}


@pytest.mark.parametrize("pretraining", [{}, {"accumulate_batches": 2}], ids=["whole", "parts"])
@pytest.mark.slow
def test_transfer_killed_in_a_stage_ends_in_the_same_bits(records, teacher, tmp_path, pretraining):
    parts = pretraining.get("accumulate_batches", 1)
    pretraining |= {"log_every_steps": 3, "checkpoint_every_steps": 3}
    config = make_transfer(pretraining, accumulate_batches=parts, layer_transfer_steps=4, total_steps=10)

    class Killed(BaseException):
        pass

    def run(name, last=None):
        steps = []

        def report(line):
            if line["step"] == last:
                raise Killed  # before its checkpoint
            steps.append(line["step"])

        return distill(config, records, teacher, tmp_path / name, report), steps

    whole, _ = run("whole")
    with pytest.raises(Killed):
        run("killed", 6)
    killed, steps = run("killed")
    assert steps == [6, 9, 10]  # from step 3 of the four of the first layer, over their end and that of the transfer
    first, second = ((folder / "model" / "model.safetensors").read_bytes() for folder in (whole, killed))
    assert first == second


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="the others compile each step")
@pytest.mark.parametrize("kind", ["adamw", "bert_adam", "lamb"])
def test_steps_on_a_device_are_those_of_a_processor(kind, monkeypatch):
    """Values are put back there, where Python does not know the step."""
    values = np.random.default_rng(1).normal(size=(2, 4, 3)).astype("float32")
    gradients = np.random.default_rng(2).normal(size=(6, 2, 4, 3)).astype("float32")
    found = []
    for is_here in (True, False):
        monkeypatch.setattr(guard, "is_torch_on_processor", lambda is_here=is_here: is_here)
        weights = [keras.Variable(value, name=name) for value, name in zip(values, "ab", strict=True)]
        optimizer = make_guarded_optimizer(kind, 0.1, 0.1, 0.5, turns={"a": (0, 2), "b": (2, 4)})
        optimizer.build(weights)
        taken = []
        for pair in gradients:
            optimizer.apply([ops.convert_to_tensor(part) for part in pair], weights)
            taken.append([read_variable(weight).copy() for weight in weights])
        found.append(np.array(taken))  # (steps, weights, rows, columns)
        assert np.array_equal(found[-1][:2, 1], np.stack([values[1]] * 2))
        assert np.array_equal(found[-1][2:4, 0], np.stack([found[-1][1, 0]] * 2))
        assert all(not np.array_equal(*pair) for pair in zip(found[-1][3], found[-1][4], strict=True))
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_gradients_of_others_do_not_count_in_the_clipped_norm():
    weights = [keras.Variable(np.zeros(2, "float32"), name=name) for name in "ab"]
    optimizer = make_guarded_optimizer("lamb", 0.1, 0.0, 1.0, turns={"a": (0, 1), "b": (1, 2)})
    optimizer.build(weights)
    optimizer.apply([ops.convert_to_tensor(np.full(2, size, "float32")) for size in (0.5, 1e4)], weights)
    momentum, other = optimizer.inner_optimizer._momentums
    np.testing.assert_allclose(read_variable(momentum), 0.05)  # a tenth of the gradient, which is not clipped
    assert not read_variable(other).any()


@pytest.mark.slow
def test_rate_rises_in_each_stage():
    schedule = StagedWarmup(WarmupDecay(2.0, 2, 10), 2.0, 20, 40)
    found = [float(ops.convert_to_numpy(schedule(step))) for step in (0, 1, 19, 20, 21, 39, 40, 41, 42, 46, 50)]
    assert found == pytest.approx([1.0, 2.0, 2.0, 1.0, 2.0, 2.0, 0.0, 1.0, 2.0, 1.0, 0.0])
    twin = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
    assert twin.get_config() == schedule.get_config()


def test_turns_of_layers_follow_each_other():
    progressive, joint = LayerTransfer(3, 4, False), LayerTransfer(3, 4, True)
    assert [progressive.find_turn(layer) for layer in range(3)] == [(0, 4), (4, 8), (8, 12)]
    assert [progressive.find_weights(step).tolist() for step in (0, 3, 4, 11, 12)] == [
        [1, 0, 0],
        [1, 0, 0],
        [0, 1, 0],
        [0, 0, 1],
        [0, 0, 0],
    ]
    assert [joint.find_weights(step).tolist() for step in (0, 11, 12)] == [[1, 1, 1], [1, 1, 1], [0, 0, 0]]
    assert (progressive.stage_steps, joint.stage_steps, progressive.steps) == (4, 12, 12)
    assert Distillation.of(DistillationConfig(), 2).first_step == 0
    assert Distillation.of(make_transfer().distillation, 2).first_step == 4


def test_plateau_is_not_looked_for_before_masked_tokens_are_learnt():
    settings = PretrainingConfig(total_steps=20, warmup_steps=1, log_every_steps=2)
    lines = [{"step": step, "mlm_loss": 0.0 if step <= 8 else 6.0} for step in range(2, 13, 2)]
    remarks = [PlateauWatch(lambda: 6.0, settings, first_step=first).see for first in (0, 8)]
    assert any(remarks[0](line) for line in lines) and not any(remarks[1](line) for line in lines)


def test_settings_that_are_off_are_in_no_key(records, teacher):
    names = {"feature_map_weight", "attention_map_weight", "transfer", "layer_transfer_steps"}
    plain = make_transfer(transfer="auxiliary", layer_transfer_steps=0, feature_map_weight=0, attention_map_weight=0)
    for config, expected in ((plain, set()), (make_transfer(), names)):
        for facts in (distillation_settings(config.student), distillation_identity(config, records, teacher)):
            assert names & {*facts["distillation"]} == expected
    others = [plain, make_transfer(), make_transfer(transfer="joint"), make_transfer(layer_transfer_steps=1)]
    others += [make_transfer(feature_map_weight=1.0), make_transfer(start="random")]
    assert len({distillation_key(config, records, teacher) for config in others}) == 6


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"total_steps": 4},
            "`distillation.total_steps` must be above .* total_steps=4, 2 layers, layer_transfer_steps=2",
        ),
        ({"warmup_steps": 3}, "warm-up after it. Received: total_steps=6, .* warmup_steps=3. Raise total_steps"),
        (
            {"student": STUDENT | {"num_layers": 1}},
            "as many layers as its teacher.* Received: num_layers=1, the teacher's 2",
        ),
        ({"student": STUDENT | {"num_heads": 4}}, "Received: num_heads=4, the teacher's 2"),
        ({"student": STUDENT | {"hidden_dim": 32}, "start": "random"}, "Received: hidden_dim=32, the teacher's 16"),
        ({"start": "teacher"}, "Received: .*bottleneck_dim=8, not 24.* set distillation.start to embeddings or random"),
        (
            {"student": SHAPE | {"family": "albert", "intermediate_dim": 12}, "start": "random"},
            "student whose layers share no weights. Received: family=albert",
        ),
    ],
)
def test_what_cannot_be_taught_is_refused_before_work(records, teacher, tmp_path, settings, message):
    config = make_transfer(**settings)
    with pytest.raises(ValueError, match=message):
        check_distillation_stage(config, records, teacher, tmp_path / "out")
    with pytest.raises(ValueError, match=message):
        distill(config, records, teacher, tmp_path / "out", lambda line: None)
    check_distillation_stage(make_transfer(), records, teacher, tmp_path / "out")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layer_transfer_steps": 0}, "go together. Received: transfer=progressive, layer_transfer_steps=0"),
        ({"transfer": "auxiliary"}, "go together. Received: transfer=auxiliary, layer_transfer_steps=2"),
        ({"feature_map_weight": 0, "attention_map_weight": 0}, "must have losses of maps to begin with"),
        ({"soft_target_weight": 0, "masked_lm_weight": 0}, "a sum of the other weights of 0.0. Set one of each"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        make_transfer(**settings)


def test_minutes_are_refused():
    student = STUDENT | {"max_positions": 512}
    values = {"distillation": TRANSFER | {"student": student, "total_steps": 10}, "pretraining": {"minutes": 2}}
    with pytest.raises(ValueError, match="`pretraining.minutes` must not go with `distillation.transfer: progressive`"):
        make_config(PipelineConfig, values, "test")

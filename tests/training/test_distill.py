"""Distillation from records and a teacher to a student that is published, over a kill, and what is refused."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_bert_flow as kbf
from keras_bert_flow.checks.run import check_distillation_stage
from keras_bert_flow.config.pretraining import DistillationConfig, ModelConfig
from keras_bert_flow.results.manifest import check_folder
from keras_bert_flow.results.stages.models import distillation_key, distillation_settings
from keras_bert_flow.training.distillation import distill
from keras_bert_flow.training.loop.identity import distillation_identity
from keras_bert_flow.training.loop.logs import read_log
from keras_bert_flow.training.pretraining.pretrain import pretrain
from tests.oracles.objective_records import write_objective_records
from tests.oracles.tiny_records import make_tiny_config
from tests.training.test_objectives import SETTINGS, SHAPE

pytestmark = pytest.mark.any_backend

LAYERS_ALONE = {"soft_target_weight": 0.0, "masked_lm_weight": 0.0, "hidden_state_weight": 0.0} | {
    "attention_score_weight": 1.0,
    "layer_state_weight": 0.5,
}
STEPS = {"batch_size": 16, "total_steps": 80, "warmup_steps": 4, "learning_rate": 0.003}


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return write_objective_records(tmp_path_factory.mktemp("distillation") / "records", "mlm_nsp")


def make_config(family="distilbert", **settings):
    config = make_tiny_config(model=SHAPE | {"num_layers": 2}, masking="dynamic", **SETTINGS)
    shape = config.model.model_dump() | {"family": family, "num_layers": 1}
    settings = STEPS | {"student": ModelConfig(**shape)} | settings
    return config.model_copy(update={"distillation": DistillationConfig(**settings)})


@pytest.fixture(scope="module")
def teacher(records):
    return pretrain(make_config(), records, records.parent / "teacher", lambda line: None) / "model"


@pytest.fixture(scope="module")
def untrained(records):
    config = make_config()
    pretraining = config.pretraining.model_copy(update={"total_steps": 1, "warmup_steps": 1})
    config = config.model_copy(update={"pretraining": pretraining})
    return pretrain(config, records, records.parent / "untrained", lambda line: None) / "model"


@pytest.mark.parametrize(
    ("family", "start"), [("distilbert", "teacher"), pytest.param("bert", "random", marks=pytest.mark.slow)]
)
@pytest.mark.slow
def test_student_comes_near_its_teacher(records, teacher, tmp_path, family, start):
    output = distill(make_config(family, start=start), records, teacher, tmp_path / "out", lambda line: None)
    manifest = check_folder(output, "distillation")
    assert set(manifest.inputs) == {"records", "teacher"}
    assert manifest.config["model"]["family"] == family
    lines = read_log(output)
    # A copy of its layers begins near the teacher; random weights have the way before them.
    assert lines[-1]["soft_loss"] < (0.2 if start == "teacher" else 0.9 * lines[0]["soft_loss"])
    metrics = json.loads((output / "metrics.json").read_text())
    model = kbf.MaskedLM.from_preset(output / "model")
    assert (model.backbone.family, model.backbone.num_layers) == (family, 1)
    assert metrics["parameters"] == model.count_params()
    assert metrics["masked_lm_loss"] < np.log(40) - 0.3  # 40 pieces


@pytest.mark.parametrize("layers", [{}, LAYERS_ALONE], ids=["predictions", "layers"])
@pytest.mark.slow
def test_killed_distillation_ends_in_the_same_bits(records, teacher, tmp_path, layers):
    config = make_config("bert", total_steps=9, **layers) if layers else make_config(total_steps=9)
    pretraining = config.pretraining.model_copy(update={"checkpoint_every_steps": 4, "log_every_steps": 4})
    config = config.model_copy(update={"pretraining": pretraining})

    class Killed(BaseException):
        pass

    def die(line):
        if line["step"] == 8:
            raise Killed  # before its checkpoint: the run goes on from step 4

    whole = distill(config, records, teacher, tmp_path / "whole", lambda line: None)
    with pytest.raises(Killed):
        distill(config, records, teacher, tmp_path / "killed", die)
    (state,) = tmp_path.glob(".killed*/checkpoints/step-00000004/state.safetensors")
    student = (kbf.Backbone if layers else kbf.MaskedLM).from_preset(whole / "model")
    kept = [name for name in load_file(state) if name.startswith("model/") and "seed" not in name]
    projection = [name for name in kept if "layers/projection" in name]
    assert len(projection) == (2 if layers else 0)
    assert len(kept) == len(student.weights) + len(projection)  # and nothing of the teacher
    steps = []
    killed = distill(config, records, teacher, tmp_path / "killed", lambda line: steps.append(line["step"]))
    assert steps == [8, 9]
    first, second = ((folder / "model" / "model.safetensors").read_bytes() for folder in (whole, killed))
    assert first == second


def test_student_of_layers_is_an_encoder(records, untrained, tmp_path):
    """Narrower than its teacher, which needs no head, and published without the projection."""
    encoder = kbf.Backbone.from_preset(untrained)
    encoder.save_to_preset(tmp_path / "bare", vocabulary_path=records / "vocab.txt")
    shape = make_config().distillation.student.model_copy(update={"family": "bert", "hidden_dim": 16})
    config = make_config(student=shape, start="random", total_steps=6, warmup_steps=2, **LAYERS_ALONE)
    check_distillation_stage(config, records, tmp_path / "bare", tmp_path / "out")
    lines = []
    output = distill(config, records, tmp_path / "bare", tmp_path / "out", lines.append)
    model = kbf.Backbone.from_preset(output / "model")
    assert json.loads((output / "model" / "config.json").read_text())["architectures"] == ["BertModel"]
    assert (model.num_layers, model.hidden_dim, model.use_pooler) == (1, 16, False)
    names = {name.split(".")[0] for name in load_file(output / "model" / "model.safetensors")}
    assert names == {"embeddings", "encoder"}
    metrics = json.loads((output / "metrics.json").read_text())
    assert metrics["parameters"] == model.count_params()
    assert "masked_lm_loss" not in metrics and "attention_score_accuracy" not in metrics
    total = metrics["attention_score_loss"] + 0.5 * metrics["layer_state_loss"]
    assert metrics["distillation_loss"] == pytest.approx(total, rel=1e-6)
    assert lines[-1]["loss"] == pytest.approx(
        lines[-1]["attention_score_loss"] + 0.5 * lines[-1]["layer_state_loss"], rel=1e-5
    )


def test_random_student_of_layers_and_predictions_starts_from_counts(records, untrained, tmp_path):
    """Its bias is that of a student whose layers are not compared."""
    biases, narrow = [], make_config().distillation.student.model_copy(update={"family": "bert", "hidden_dim": 8})
    shared = {"student": narrow, "start": "random", "hidden_state_weight": 0.0, "total_steps": 1, "warmup_steps": 1}
    for name, layers in (("layers", {"layer_state_weight": 1.0}), ("predictions", {})):
        config = make_config(**shared, **layers)
        counts = {"output_bias": "unigram", "token_embeddings": "co_occurrence"}
        config = config.model_copy(update={"pretraining": config.pretraining.model_copy(update=counts)})
        output = distill(config, records, untrained, tmp_path / name, lambda line: None)
        biases.append(load_file(output / "initial" / "model.safetensors")["cls.predictions.bias"])
    np.testing.assert_array_equal(*biases)
    assert np.std(biases[0]) > 0.1 and np.exp(biases[0]).sum() == pytest.approx(1, rel=1e-5)


def test_settings_that_are_off_are_in_no_key(records, untrained):
    """As results have it that were made before there were such settings."""
    config = make_config()
    for facts in (distillation_settings(config.student), distillation_identity(config, records, untrained)):
        assert "hidden_state_weight" in facts["distillation"]
        assert not {"attention_score_weight", "layer_state_weight"} & {*facts["distillation"]}
    config = make_config("bert", **LAYERS_ALONE)
    for facts in (distillation_settings(config.student), distillation_identity(config, records, untrained)):
        assert facts["distillation"]["layer_state_weight"] == 0.5


def test_key_goes_by_teacher_and_settings(records, untrained, tmp_path):
    key = distillation_key(make_config(), records, untrained)
    assert key == distillation_key(make_config(teacher="elsewhere"), records, untrained)
    others = [
        make_config(temperature=3.0),
        make_config("bert"),
        make_config(total_steps=41),
        make_config(start="random"),
        make_config(attention_score_weight=1.0),
        make_config(layer_state_weight=1.0),
    ]
    assert len({key, *(distillation_key(config, records, untrained) for config in others)}) == 7
    watched = make_config()
    pretraining = watched.pretraining.model_copy(update={"log_every_steps": 3})
    assert key == distillation_key(watched.model_copy(update={"pretraining": pretraining}), records, untrained)


def test_what_cannot_be_is_refused_before_work(records, untrained, tmp_path):
    def check(config, teacher=untrained):
        check_distillation_stage(config, records, teacher, tmp_path / "out")

    check(make_config())
    wide = make_config(student=ModelConfig(family="bert", size="tiny", max_positions=16))
    with pytest.raises(ValueError, match="of one width to be compared. Received: hidden_dim=128, the teacher's 32"):
        check(wide)
    deep = make_config().distillation.student.model_copy(update={"num_layers": 3})
    with pytest.raises(ValueError, match="Received: 3 blocks for 2 layers"):
        check(make_config(student=deep))
    kbf.Backbone.from_preset(untrained).save_to_preset(tmp_path / "bare", vocabulary_path=records / "vocab.txt")
    with pytest.raises(ValueError, match="must have a masked-LM head"):
        check(make_config(), tmp_path / "bare")
    check(make_config("bert", **LAYERS_ALONE), tmp_path / "bare")
    heads = make_config().distillation.student.model_copy(update={"num_heads": 4})
    with pytest.raises(ValueError, match="of as many heads to be compared. Received: num_heads=4, the teacher's 2"):
        check(make_config(student=heads, **LAYERS_ALONE), tmp_path / "bare")
    with pytest.raises(ValueError, match="There must be a section `distillation`"):
        check(make_config().model_copy(update={"distillation": None}))
    others = write_objective_records(tmp_path / "others", "mlm")
    pieces = (others / "vocab.txt").read_text().replace("word7", "other7")
    (teacher_of_others := tmp_path / "teacher").mkdir()
    for path in untrained.iterdir():
        (teacher_of_others / path.name).write_bytes(path.read_bytes())
    (teacher_of_others / "vocab.txt").write_text(pieces)
    (teacher_of_others / "tokenizer.json").unlink()
    with pytest.raises(ValueError, match="with other pieces"):
        check(make_config(), teacher_of_others)

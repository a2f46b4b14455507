"""Runs of families of later blocks: killed ones end in the same bits, and their predictions teach another family."""

import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.config.pretraining import DistillationConfig, ModelConfig
from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.training.distillation import distill
from keras_bert_flow.training.loop.logs import read_log
from keras_bert_flow.training.pretraining.pretrain import pretrain
from tests.oracles.objective_records import write_objective_records
from tests.oracles.tiny_records import make_tiny_config
from tests.training.finetune_cases import LENGTH, finetune_case
from tests.training.test_objectives import SETTINGS

pytestmark = [pytest.mark.slow, pytest.mark.any_backend]

RATES = {"hidden_dim": 32, "max_positions": LENGTH, "dropout_rate": 0.1, "attention_dropout_rate": 0.1}
SHAPES = {
    # A global layer and two local ones that see two tokens on each side.
    "modernbert": RATES | {"num_layers": 3, "options": {"local_attention": 4}},
    # Buckets that distances share, and the convolution of v2.
    "deberta-v2": RATES | {"num_layers": 2, "options": {"position_buckets": 4, "convolution_width": 3}},
}
TENSORS = {
    "modernbert": {"head.dense.weight", "head.norm.weight", "classifier.weight"},
    "deberta-v2": {"pooler.dense.weight", "deberta.encoder.rel_embeddings.weight", "classifier.weight"},
}


class Killed(BaseException):
    pass


def die_at(step):
    def report(line):
        if line["step"] == step:
            raise Killed  # before its checkpoint: the run goes on from the one before

    return report


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return write_objective_records(tmp_path_factory.mktemp("runs") / "records", "mlm")


@pytest.fixture(scope="module", params=SHAPES)
def shape(request):
    return SHAPES[request.param] | {"family": request.param}


@pytest.fixture(scope="module")
def teacher(records, shape):
    config = make_tiny_config(model=shape, masking="dynamic", **SETTINGS | {"learning_rate": 0.003})
    return pretrain(config, records, records.parent / shape["family"], lambda line: None) / "model"


def test_killed_pretraining_ends_in_the_same_bits(records, shape, tmp_path):
    settings = SETTINGS | {"total_steps": 14, "log_every_steps": 5, "checkpoint_every_steps": 5}
    config = make_tiny_config(model=shape, masking="dynamic", **settings)
    whole = pretrain(config, records, tmp_path / "whole", lambda line: None)
    with pytest.raises(Killed):
        pretrain(config, records, tmp_path / "killed", die_at(10))
    steps = []
    killed = pretrain(config, records, tmp_path / "killed", lambda line: steps.append(line["step"]))
    assert steps == [10, 14]
    first, second = ((folder / "model" / "model.safetensors").read_bytes() for folder in (whole, killed))
    assert first == second


def test_killed_fine_tuning_ends_in_the_same_bits(teacher, shape, tmp_path):
    options = {"tokenizer": read_tokenizer(teacher), "dropout_rate": 0.1, "seeds": (1, 2)}
    whole, _ = finetune_case(teacher, tmp_path / "whole", "classification", **options)

    def die(line):
        if line["run"].endswith("seed-2"):
            raise Killed

    with pytest.raises(Killed):
        finetune_case(teacher, tmp_path / "killed", "classification", report=die, **options)
    killed, _ = finetune_case(teacher, tmp_path / "killed", "classification", **options)
    for one, other in zip(whole, killed, strict=True):
        assert one.keys() == other.keys() >= TENSORS[shape["family"]]
        for name, value in one.items():
            np.testing.assert_array_equal(other[name], value)


def test_its_predictions_teach_another_family(records, teacher, shape, tmp_path):
    small = make_tiny_config(model={"max_positions": LENGTH}).model.model_dump() | {"hidden_dim": 32, "num_layers": 1}
    steps = {"batch_size": 16, "total_steps": 60, "warmup_steps": 4, "learning_rate": 0.003}

    def teach(start):
        settings = DistillationConfig(student=ModelConfig(**small | {"family": "distilbert"}), start=start, **steps)
        config = make_tiny_config(model=shape, masking="dynamic", **SETTINGS)
        config = config.model_copy(update={"distillation": settings})
        return distill(config, records, teacher, tmp_path / start, lambda line: None)

    if shape["family"] == "modernbert":  # whose blocks have other parts
        with pytest.raises(ValueError, match="as wide, and no deeper. Received: attention_bias=True, not False"):
            teach("teacher")
    output = teach("random")
    lines = read_log(output)
    assert lines[-1]["soft_loss"] < 0.9 * lines[0]["soft_loss"]
    assert kbf.MaskedLM.from_preset(output / "model").backbone.family == "distilbert"

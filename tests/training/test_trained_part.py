"""Fine-tune a part of the weights: what moves, what the optimizer holds, what is published and what is refused."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from keras_bert_flow.checks.stages import check_finetuning_stage
from keras_bert_flow.cli.question_commands import check_prediction
from keras_bert_flow.config.loading import make_config
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.bert import AlbertShape
from keras_bert_flow.prediction.predictors import Predictor
from keras_bert_flow.training.finetuning.finetune import finetune
from keras_bert_flow.training.finetuning.task_runs import TaskRuns
from keras_bert_flow.training.fit import check_trained_part
from tests.tasks.kinds import CASES
from tests.training.finetune_cases import finetune_case, write_tiny_model
from tests.training.separable_task import RUNS, make_task_config, weights_of

TARGETS = ("query", "key", "value", "attention_output", "feed_forward")
LORA = {"lora_rank": 2, "lora_alpha": 8.0, "lora_targets": TARGETS}
ONE_RUN = {"epochs": 1, "seeds": (1,), "compare_random": False}


def run(place, output, **settings):
    return finetune(make_task_config(place, **settings), place / "model", output, lambda line: None)


def list_moved(place, output):
    before = load_file(place / "model" / "model.safetensors")
    after = load_file(output / RUNS[0] / "model" / "model.safetensors")
    return {name for name in after if name in before and not np.array_equal(after[name], before[name])}


def read_run(output):
    return json.loads((output / RUNS[0] / "run.json").read_text())


@pytest.mark.parametrize(
    ("frozen", "still"),
    [
        (0, (".embeddings.",)),
        pytest.param(1, (".embeddings.", ".layer.0."), marks=pytest.mark.any_backend),
        ("all", (".embeddings.", ".encoder.")),
    ],
)
@pytest.mark.any_backend
@pytest.mark.first_form
def test_lowest_layers_are_frozen_to_the_bit(place, tmp_path, frozen, still):
    output = run(place, tmp_path / "out", frozen_layers=frozen, **ONE_RUN)
    names = load_file(place / "model" / "model.safetensors").keys()
    expected = {name for name in names if name.startswith("bert.") and not any(part in name for part in still)}
    assert list_moved(place, output) == expected


@pytest.mark.any_backend
def test_optimizer_has_no_state_of_frozen_weights(place, tmp_path, monkeypatch):
    seen = []
    save = TaskRuns._save
    monkeypatch.setattr(TaskRuns, "_save", lambda runs, *given: (seen.append(runs._classifier), save(runs, *given)))
    output = run(place, tmp_path / "out", frozen_layers=1, **ONE_RUN)
    (model,) = seen
    moments = [v.path for v in model.optimizer.variables if "moment" in v.path or "velocity" in v.path]
    assert len(moments) == 2 * len(model.trainable_variables) < 2 * len(model.weights)
    found = read_run(output)
    trained = sum(int(np.prod(v.shape)) for v in model.trainable_variables)
    assert (found["trained_parameters"], found["parameters"]) == (trained, model.count_params())
    assert found["peak_bytes"] > 50e6  # of a process with numpy alone


@pytest.mark.slow
@pytest.mark.any_backend
def test_lora_moves_the_projections_and_the_pooler_alone(place, tmp_path):
    output = run(place, tmp_path / "out", **LORA, **ONE_RUN, layer_decay=0.5, weight_decay=0.1)
    names = load_file(place / "model" / "model.safetensors").keys()
    products = {name for name in names if ".layer." in name and name.endswith("weight") and "LayerNorm" not in name}
    assert list_moved(place, output) == products | {name for name in names if ".pooler." in name}


@pytest.mark.slow
@pytest.mark.any_backend
def test_killed_lora_goes_on_to_the_bit(place, tmp_path):
    class Killed(BaseException):
        pass

    def die(line):
        if line["step"] > 5:
            raise Killed

    settings = LORA | ONE_RUN | {"dropout_rate": 0.1}
    whole = run(place, tmp_path / "whole", **settings)
    with pytest.raises(Killed):
        finetune(make_task_config(place, **settings), place / "model", tmp_path / "killed", die)
    again = run(place, tmp_path / "killed", **settings)
    assert weights_of(again / RUNS[0]) == weights_of(whole / RUNS[0])


@pytest.mark.any_backend
def test_adapter_is_published_and_asked(place, tmp_path):
    settings = LORA | ONE_RUN | {"lora_output": "adapter"}
    output = run(place, tmp_path / "out", **settings)
    merged = run(place, tmp_path / "merged", **settings | {"lora_output": "merged"})
    folder = output / RUNS[0] / "model"
    names = {path.name for path in folder.iterdir()}
    assert "model.safetensors" not in names
    assert names >= {"adapter_config.json", "adapter_model.safetensors", "config.json", "task.json", "vocab.txt"}
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == str(place / "model")
    texts = ["word1 word3", "word2", "word44 word0 word1"]
    answers = [Predictor(found / RUNS[0] / "model").predict(texts) for found in (output, merged)]
    for ours, theirs in zip(*answers, strict=True):
        assert ours["probabilities"] == pytest.approx(theirs["probabilities"], abs=1e-6)  # float32 rounding
    assert f"base_model: {json.dumps(str(place / 'model'))}" in (folder / "README.md").read_text()
    check_prediction(folder, None, {}, [], None)  # what `kbf predict` does before Keras is imported
    for check in (finetune, check_finetuning_stage):
        with pytest.raises(ValueError, match="Training must begin from a whole model. Received: .*, an adapter"):
            check(make_task_config(place, **settings), folder, tmp_path / "again")


@pytest.mark.any_backend
@pytest.mark.slow
def test_random_weights_are_all_trained(place, tmp_path):
    output = run(place, tmp_path / "out", **LORA | {"epochs": 1, "seeds": (1,), "random_patience_epochs": 1})
    random = json.loads((output / RUNS[2] / "run.json").read_text())
    assert random["trained_parameters"] == random["parameters"]
    assert read_run(output)["trained_parameters"] < random["parameters"] < read_run(output)["parameters"]


@pytest.mark.any_backend
@pytest.mark.parametrize("name", sorted(CASES))
@pytest.mark.first_form
def test_every_kind_of_task_is_learnt_with_lora(name, tmp_path):
    model = write_tiny_model(tmp_path)
    (weights,), _ = finetune_case(model, tmp_path / "lora", name, **LORA)
    before = load_file(model / "model.safetensors")
    before = {key.removeprefix("bert."): value for key, value in before.items()}
    weights = {key.removeprefix("bert."): value for key, value in weights.items()}
    moved = {key for key in weights.keys() & before.keys() if not np.array_equal(weights[key], before[key])}
    products = {key for key in before if ".layer." in key and key.endswith("weight") and "LayerNorm" not in key}
    assert products == {key for key in moved if not key.startswith("pooler.")}


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lora_rank": 0}, "`finetuning.lora_rank`.*greater than or equal to 1"),
        ({"lora_rank": 2, "lora_targets": ["dense"]}, "`finetuning.lora_targets.0`.*'query', 'key', 'value'"),
        ({"lora_rank": 2, "lora_targets": ["key", "key"]}, "`lora_targets` must name each once"),
        ({"lora_rank": 2, "frozen_layers": 1}, "`frozen_layers` must go without LoRA"),
        ({"lora_output": "adapter"}, "`lora_output: adapter` must go with LoRA"),
        ({"frozen_layers": -1}, "`finetuning.frozen_layers"),
        ({"frozen_layers": "most"}, "`finetuning.frozen_layers"),
    ],
)
def test_settings_that_contradict_are_refused(settings, message):
    with pytest.raises(ValueError, match=message) as caught:
        make_config(PipelineConfig, {"task": {"name": "a", "train": "b", "dev": "c"}, "finetuning": settings}, "task")
    assert "\n" not in str(caught.value)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"frozen_layers": 3},
            "`frozen_layers` must be at most 1, the model's number of blocks. Received: .*=3",
        ),
        (
            {"lora_rank": 99},
            "`lora_rank` must be at most the width of the model, 16. Received: finetuning.lora_rank=99",
        ),
    ],
)
def test_what_the_model_has_not_is_refused_before_work(place, tmp_path, settings, message):
    for check in (finetune, check_finetuning_stage):
        with pytest.raises(ValueError, match=message) as caught:
            check(make_task_config(place, **settings), place / "model", tmp_path / "out")
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.any_backend
def test_blocks_are_counted_not_layers():
    config = make_config(PipelineConfig, {"finetuning": {"frozen_layers": 2}}, "task")
    sizes = {"vocabulary_size": 9, "num_layers": 4, "num_heads": 1, "hidden_dim": 4, "intermediate_dim": 4}
    check_trained_part(config, EncoderShape(**sizes))
    with pytest.raises(ValueError, match="at most 1, "):
        check_trained_part(config, AlbertShape(**sizes))


@pytest.mark.any_backend
@pytest.mark.parametrize("frozen", [4, "all"])
def test_an_encoder_without_a_head_is_not_frozen_whole(frozen):
    task = {"name": "pairs", "kind": "sentence_embedding", "train": "a.tsv", "dev": "b.tsv"}
    config = make_config(PipelineConfig, {"task": task, "finetuning": {"frozen_layers": frozen}}, "task")
    shape = EncoderShape(vocabulary_size=9, num_layers=4, num_heads=1, hidden_dim=4, intermediate_dim=4)
    with pytest.raises(
        ValueError, match="must leave something to train: a task of kind sentence_embedding has no head"
    ):
        check_trained_part(config, shape)

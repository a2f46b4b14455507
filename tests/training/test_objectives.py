"""Every objective from records to a published model, by static and dynamic masks, over a kill."""

import json

import keras
import numpy as np
import pytest

from keras_bert_flow.conversion.model_directory import load_backbone
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.models.heads.classifiers import TextClassifier
from keras_bert_flow.models.pretraining.masked_lm import BertPretrainer, MaskedLM
from keras_bert_flow.models.pretraining.replaced_tokens import ReplacedTokenDetector
from keras_bert_flow.results.manifest import check_folder
from keras_bert_flow.text.objectives import OBJECTIVES
from keras_bert_flow.text.objectives.objective import find_objective
from keras_bert_flow.training.loop.logs import read_log
from keras_bert_flow.training.pretraining import pretrain as module
from keras_bert_flow.training.pretraining.pretrain import pretrain
from tests.contracts import run_objective_test
from tests.oracles.objective_records import write_objective_records
from tests.oracles.tiny_records import make_tiny_config

pytestmark = pytest.mark.any_backend

MASKED_LM = {"masked_lm_loss", "masked_lm_perplexity", "masked_lm_accuracy", "unigram_accuracy"}
OTHERS = {"steps", "tokens", "seconds", "tokens_per_second", "parameters"}
SENTENCES = {
    "mlm_nsp": {"next_sentence_loss", "next_sentence_accuracy"},
    "mlm": set(),
    "mlm_sop": {"sentence_order_loss", "sentence_order_accuracy"},
    "mlm_sbo": {"span_boundary_loss", "span_boundary_accuracy"},
    "rtd": {"replaced_token_loss", "replaced_token_accuracy", "replaced_token_chance"},
}
MODELS = {
    "mlm": MaskedLM,
    "mlm_nsp": BertPretrainer,
    "mlm_sop": BertPretrainer,
    "mlm_sbo": MaskedLM,
    "rtd": ReplacedTokenDetector,
}
# of the others: BertForPreTraining
ARCHITECTURES = {"mlm": "BertForMaskedLM", "mlm_sbo": "BertForMaskedLM", "rtd": "ElectraForPreTraining"}
FAMILIES = {"rtd": "electra"}  # of the others: bert
SHAPE = {"num_layers": 1, "hidden_dim": 32, "dropout_rate": 0.0, "attention_dropout_rate": 0.0}
SETTINGS = {
    "batch_size": 16,
    "total_steps": 120,
    "warmup_steps": 4,
    "log_every_steps": 40,
    "evaluate_every_steps": 120,
    "evaluate_instances": 40,
    "checkpoint_every_steps": 120,
}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_objective_keeps_contract(objective, tmp_path):
    architecture = ARCHITECTURES.get(objective, "BertForPreTraining")
    run_objective_test(objective, tmp_path, MODELS[objective], architecture, FAMILIES.get(objective, "bert"))


def run(folder, objective, masking, **settings):
    records = write_objective_records(folder / "records", objective)
    shape = SHAPE | {"family": FAMILIES.get(objective, "bert")}
    config = make_tiny_config(model=shape, masking=masking, **SETTINGS | settings)
    return pretrain(config, records, folder / "out", lambda line: None)


@pytest.mark.slow
@pytest.mark.parametrize("masking", ["static", pytest.param("dynamic", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "objective", [pytest.param(name, marks=pytest.mark.slow if name == "mlm_sop" else ()) for name in SENTENCES]
)
@pytest.mark.first_form
def test_every_objective_trains(objective, masking, tmp_path):
    # A narrow generator learns slowly, and the detector can tell no more than its guesses let it.
    faster = {"learning_rate": 0.01} if objective == "rtd" else {}
    output = run(tmp_path, objective, masking, **faster)
    check_folder(output, "pretraining")
    lines = read_log(output)
    assert [line["step"] for line in lines] == [40, 80, 120]
    # Fresh weights guess evenly among 40 pieces, log 40 = 3.7 nats, and a sentence task costs log 2 = 0.7 besides.
    assert lines[-1]["loss"] < lines[0]["loss"] - 0.3
    outputs = find_objective(objective).scores if objective != "mlm" else ()  # the loss of one head is the loss
    assert all(
        {name for name in line if name.endswith("_loss")} >= {f"{name}_loss" for name in outputs} for line in lines
    )
    assert ("mlm_loss" in lines[0]) == (objective != "mlm")
    metrics = json.loads((output / "metrics.json").read_text())
    assert set(metrics) == MASKED_LM | SENTENCES[objective] | OTHERS
    assert {f"held_out_{name}" for name in MASKED_LM | SENTENCES[objective]} <= set(lines[-1])
    assert metrics["masked_lm_loss"] < np.log(40) - 0.3
    if objective == "rtd":  # it is beyond one who knows only how many tokens are replaced
        share = metrics["replaced_token_chance"]
        entropy = -share * np.log(share) - (1 - share) * np.log(1 - share)
        assert metrics["replaced_token_loss"] < entropy - 0.01
    else:
        assert metrics["masked_lm_accuracy"] > metrics["unigram_accuracy"]  # it uses the context
    model = MODELS[objective].from_preset(output / "model")
    assert metrics["parameters"] == model.count_params()
    config = json.loads((output / "model" / "config.json").read_text())
    assert config["architectures"] == [ARCHITECTURES.get(objective, "BertForPreTraining")]


def test_model_of_masked_lm_alone_can_be_fine_tuned(tmp_path):
    model = run(tmp_path, "mlm", "static", total_steps=5) / "model"
    classifier = TextClassifier.from_preset(model, num_classes=2)
    encoder = {variable.path: variable for variable in load_backbone(model).weights}
    for variable in classifier.backbone.weights:
        if not variable.path.startswith("pooler/"):
            np.testing.assert_array_equal(*(keras.ops.convert_to_numpy(v) for v in (variable, encoder[variable.path])))


@pytest.mark.parametrize("objective", [pytest.param("mlm", marks=pytest.mark.slow), "mlm_sbo", "rtd"])
@pytest.mark.slow
def test_what_is_drawn_survives_a_kill(objective, tmp_path):
    settings = {"total_steps": 14, "checkpoint_every_steps": 5}
    whole = run(tmp_path, objective, "dynamic", **settings)
    shape = SHAPE | {"family": FAMILIES.get(objective, "bert")}
    config = make_tiny_config(model=shape, masking="dynamic", **SETTINGS | settings)

    class Killed(BaseException):
        pass

    def die(line):
        if line["step"] == 10:
            raise Killed  # before its checkpoint: the run goes on from step 5

    with pytest.raises(Killed):
        pretrain(config, tmp_path / "records", tmp_path / "again", die)
    steps = []
    again = pretrain(config, tmp_path / "records", tmp_path / "again", lambda line: steps.append(line["step"]))
    assert steps == [10, 14]
    weights = [(folder / "model" / "model.safetensors").read_bytes() for folder in (whole, again)]
    assert weights[0] == weights[1]


def test_held_out_set_is_the_same_at_every_evaluation(tmp_path, monkeypatch):
    """Whatever the training masks and order, and over a restart: the same rows with the masks of the records."""
    records = write_objective_records(tmp_path / "records", "mlm")
    settings = {"total_steps": 6, "evaluate_every_steps": 2, "checkpoint_every_steps": 2}
    config = make_tiny_config(model=SHAPE, masking="dynamic", **SETTINGS | settings)
    seen, score = [], module.score_pretraining

    def score_and_keep(model, batches, *others):
        batches = list(batches)
        seen.append(batches)
        return score(model, batches, *others)

    class Killed(BaseException):
        pass

    def die(line):
        if line["step"] == 4:
            raise Killed

    monkeypatch.setattr(module, "score_pretraining", score_and_keep)
    with pytest.raises(Killed):
        pretrain(config, records, tmp_path / "out", die)
    pretrain(config, records, tmp_path / "out", lambda line: None)
    assert len(seen) == 4  # after steps 2, 4, 4 again and 6
    held_out = PretrainingRecords(records, "held_out")
    rows = [held_out[index] for index in range(min(40, len(held_out)))]
    for batches in seen:
        weights = np.concatenate([weights["mlm"] for _, _, weights in batches])[: len(rows)]
        np.testing.assert_array_equal(weights, [row["masked_lm_weights"] for row in rows])
        for name, theirs in {"token_ids": "input_ids", "mask_positions": "masked_lm_positions"}.items():
            found = np.concatenate([x[name] for x, _, _ in batches])[: len(rows)]
            np.testing.assert_array_equal(found, [row[theirs] for row in rows])
        assert sum(weights["mlm"].sum() for _, _, weights in batches) == weights.sum() > 0  # filler weighs nothing

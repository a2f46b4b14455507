"""Every family is pre-trained from records, published, asked and fine-tuned further, without a line for it."""

import json

import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.training.fit import check_objective
from keras_bert_flow.training.loop.logs import read_log
from keras_bert_flow.training.pretraining.pretrain import pretrain
from tests.contracts import CLASSES
from tests.oracles.objective_records import write_objective_records
from tests.oracles.tiny_records import make_tiny_config
from tests.training.finetune_cases import LENGTH, finetune_case
from tests.training.test_objectives import SETTINGS, SHAPE

FAMILIES = {name: prefix for name, prefix in CLASSES.items() if name != "bert"}


# Electra has the most parts; the others differ from BERT by less.
SLOW, ANY = pytest.mark.slow, pytest.mark.any_backend
MARKS = {
    "albert": SLOW,
    "deberta-v2": SLOW,
    "distilbert": SLOW,
    "electra": ANY,
    "mobilebert": SLOW,
    "modernbert": SLOW,
    "roberta": SLOW,
}


@pytest.mark.parametrize("family", [pytest.param(name, marks=MARKS.get(name, ())) for name in FAMILIES])
@pytest.mark.slow
def test_family_is_pretrained_and_fine_tuned(tmp_path, family):
    records = write_objective_records(tmp_path / "records", "mlm")
    settings = SETTINGS | {"optimizer": "muon", "output_bias": "unigram", "learning_rate": 0.01}
    config = make_tiny_config(model=SHAPE | {"family": family, "max_positions": LENGTH}, masking="dynamic", **settings)
    output = pretrain(config, records, tmp_path / "out", lambda line: None)
    losses = [line["loss"] for line in read_log(output)]
    assert losses[-1] < losses[0] - 0.3
    model = output / "model"
    written = json.loads((model / "config.json").read_text())
    assert (written["architectures"], written["model_type"]) == ([f"{FAMILIES[family]}ForMaskedLM"], family)
    pieces = (records / "vocab.txt").read_text().split("\n")
    ((fills,),) = kbf.load(model, task="fill_mask", top_k=3).predict([f"{pieces[9]} [MASK] {pieces[10]}"])
    assert len(fills) == 3 and all(np.isfinite(fill["score"]) for fill in fills)
    weights, losses = finetune_case(
        model, tmp_path / "tuned", "regression", tokenizer=read_tokenizer(model), layer_decay=0.9
    )
    assert losses[-1] < losses[0]


@pytest.mark.any_backend
def test_fields_of_a_family_are_options_of_the_configuration(tmp_path):
    records = write_objective_records(tmp_path / "records", "mlm_sop")
    shape = SHAPE | {"num_layers": 2, "family": "albert", "options": {"embedding_dim": 8, "num_groups": 2}}
    settings = SETTINGS | {"total_steps": 2, "warmup_steps": 1}
    model = pretrain(make_tiny_config(model=shape, **settings), records, tmp_path / "out", lambda line: None) / "model"
    backbone = kbf.Backbone.from_preset(model)
    assert (backbone.embedding_dim, len(backbone.blocks)) == (8, 2)
    further = make_tiny_config(model=shape | {"options": {"embedding_dim": 8}}, **settings)
    with pytest.raises(ValueError, match="with num_groups=2, not 1. Set these in the section `model`"):
        pretrain(further, records, tmp_path / "further", lambda line: None, initial_model=model)
    further = make_tiny_config(model=shape | {"family": "bert", "options": {}}, **settings)
    with pytest.raises(ValueError, match="with family=albert, not bert"):
        pretrain(further, records, tmp_path / "further", lambda line: None, initial_model=model)


@pytest.mark.any_backend
@pytest.mark.slow
def test_detector_goes_on_with_a_new_generator(tmp_path, caplog):
    records = write_objective_records(tmp_path / "records", "rtd")
    config = make_tiny_config(model=SHAPE | {"family": "electra"}, **SETTINGS | {"total_steps": 2, "warmup_steps": 1})
    first = pretrain(config, records, tmp_path / "first", lambda line: None) / "model"
    still = config.pretraining.model_copy(update={"learning_rate": 1e-12})  # too small a step for float32 to see
    further = config.model_copy(update={"pretraining": still})
    caplog.clear()
    second = pretrain(further, records, tmp_path / "second", lambda line: None, initial_model=first) / "model"
    (said,) = (record.getMessage() for record in caplog.records if "begin anew" in record.getMessage())
    names = said.partition("no weights for ")[2].partition(", which")[0].split(", ")
    assert {name.partition("_")[0] for name in names} == {"generator", "mlm"}  # and nothing of the detector
    before, after = (kbf.ReplacedTokenDetector.from_preset(folder).get_weights() for folder in (first, second))
    for one, other in zip(before, after, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)


@pytest.mark.any_backend
def test_detector_has_a_family_and_no_bag_of_words():
    with pytest.raises(ValueError, match="`model.family` must be one of electra for the objective rtd. Received: bert"):
        check_objective("rtd", "bert", 0.0)
    with pytest.raises(ValueError, match="`pretraining.bag_of_words` must be 0 with the objective rtd. Received: 1.0"):
        check_objective("rtd", "electra", 1.0)
    check_objective("rtd", "electra", 0.0)


@pytest.mark.any_backend
@pytest.mark.parametrize("family", ["distilbert", "electra", "roberta"])
def test_family_without_a_sentence_task_is_refused_one(tmp_path, family):
    records = write_objective_records(tmp_path / "records", "mlm_sop")
    config = make_tiny_config(model=SHAPE | {"family": family}, **SETTINGS)
    with pytest.raises(ValueError, match=f"no sentence task for the family {family}. Received: mlm_sop. Use mlm"):
        pretrain(config, records, tmp_path / "out", lambda line: None)

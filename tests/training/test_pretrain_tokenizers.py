"""Models are pre-trained on records of tokenizers of other families, and `transformers` reads what comes out."""

import shutil

import numpy as np
import pytest
import torch
import transformers

import keras_bert_flow as kbf
from beam_jobs.build_records import build_records
from keras_bert_flow.checks.stages import check_pretraining_stage
from keras_bert_flow.config.text import CorpusConfig, RecordsConfig
from keras_bert_flow.training.pretraining.pretrain import pretrain
from tests.oracles.other_tokenizers import TEXTS, make_byte_level, make_unigram
from tests.oracles.tiny_records import make_tiny_config

pytestmark = pytest.mark.any_backend
FAMILIES = {"roberta": (make_byte_level, {"pad_token_id": 1}), "albert": (make_unigram, {})}
STEPS = {"total_steps": 3, "warmup_steps": 0, "masking": "dynamic", "evaluate_every_steps": 3}


@pytest.fixture(scope="module", params=FAMILIES)
def case(request, tmp_path_factory):
    """A family, its options, and records of a tokenizer that it is used with."""
    (make, options), place = FAMILIES[request.param], tmp_path_factory.mktemp(request.param)
    make().save(str(place / "tokenizer.json"))
    documents = "\n\n".join(f"{text} {number}" for number in range(40) for text in TEXTS)
    (place / "corpus.txt").write_text(documents)
    settings = RecordsConfig(objective="mlm", sequence_length=16, max_predictions=3, duplication=1)
    corpus = CorpusConfig(input=(str(place / "corpus.txt"),))
    build_records(corpus, settings, place / "tokenizer.json", False, place / "records")
    return request.param, options, place


def configure(family, options, **pretraining):
    shared = {"family": family, "options": options, "dropout_rate": 0.0}
    return make_tiny_config(shared, **STEPS | pretraining)


@pytest.mark.first_form
def test_model_and_tokenizer_are_read_by_transformers(case, tmp_path):
    family, options, place = case
    folder = pretrain(configure(family, options), place / "records", tmp_path / "out", lambda line: None) / "model"
    assert (folder / "tokenizer.json").read_text() == (place / "tokenizer.json").read_text()
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    names = {"roberta": ("<s>", "</s>", "<mask>"), "albert": ("[CLS]", "[SEP]", "[MASK]")}[family]
    cls, sep, mask = names
    ids = tokenizer.encode(" The owner of the shop", add_special_tokens=False)
    ids = torch.tensor([tokenizer.convert_tokens_to_ids([cls]) + ids + tokenizer.convert_tokens_to_ids([mask, sep])])
    with torch.no_grad():
        expected = theirs(ids, attention_mask=torch.ones_like(ids)).logits[0, -2].softmax(-1).numpy()
    (answer,) = kbf.load(folder, "fill_mask", top_k=5).predict([f" The owner of the shop{mask}"])
    found = {choice["token"]: choice["score"] for choice in answer[0]}
    assert [*found] == np.argsort(-expected, kind="stable")[:5].tolist()
    np.testing.assert_allclose([*found.values()], expected[[*found]], atol=1e-5)


@pytest.mark.first_form
def test_model_is_trained_further_on_records_of_its_tokenizer_alone(case, tmp_path):
    family, options, place = case
    config = configure(family, options)
    first = pretrain(config, place / "records", tmp_path / "first", lambda line: None) / "model"
    check_pretraining_stage(config, place / "records", first, tmp_path / "second")
    second = pretrain(config, place / "records", tmp_path / "second", lambda line: None, initial_model=first)
    assert (second / "model" / "tokenizer.json").is_file()
    other = shutil.copytree(first, tmp_path / "other")
    kinds = {"roberta": make_unigram, "albert": make_byte_level}
    kinds[family]().save(str(other / "tokenizer.json"))
    with pytest.raises(ValueError, match="must be made with the model's tokenizer"):
        pretrain(config, place / "records", tmp_path / "third", lambda line: None, initial_model=other)


@pytest.mark.slow
def test_positions_begin_behind_the_padding_token_of_the_records(case, tmp_path):
    family, options, place = case
    if not options:
        pytest.skip("counts no positions from there")
    config = configure(family, {"pad_token_id": 0})
    for check in (
        lambda: check_pretraining_stage(config, place / "records", None, tmp_path / "out"),
        lambda: pretrain(config, place / "records", tmp_path / "out", lambda line: None),
    ):
        with pytest.raises(ValueError, match="Received: 0, a tokenizer with 1. Set it to 1"):
            check()
    assert not list(tmp_path.iterdir())

"""Models with tokenizers of other families are fine-tuned, published with their tokenizer, and asked."""

import pytest

import keras_bert_flow as kbf
from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.text.tokenizers.loaded import LoadedTokenizer
from tests.oracles.other_tokenizers import make_byte_level, make_unigram
from tests.oracles.small_bert import TINY
from tests.training.finetune_cases import finetune_case

pytestmark = pytest.mark.any_backend
ITEMS = {
    "classification": "a b c",
    "regression": "a b c",
    "token_classification": ["a", "b", "c"],
    "question_answering": {"question": "a b", "context": "c d  e"},
    "multiple_choice": {"context": "a b", "question": "c", "choices": ["b c", "d", "e"]},
}


@pytest.mark.parametrize("make", [make_byte_level, make_unigram])
@pytest.mark.parametrize("kind", ITEMS)
@pytest.mark.first_form
def test_model_with_another_tokenizer_is_fine_tuned_and_asked(tmp_path, kind, make):
    tokenizer, model = LoadedTokenizer(make().to_str()), tmp_path / "model"
    backbone = kbf.BertBackbone(vocabulary_size=tokenizer.vocabulary_size, **TINY, max_positions=64)
    kbf.BertPretrainer(backbone).save_to_preset(model)
    tokenizer.write(model)
    finetune_case(model, tmp_path / "out", kind, tokenizer=tokenizer, epochs=1)
    published = tmp_path / "out/pretrained/seed-1/model"
    assert not (published / "vocab.txt").exists()
    assert (published / "tokenizer.json").read_bytes() == (model / "tokenizer.json").read_bytes()
    assert read_tokenizer(published).special_ids == tokenizer.special_ids
    (answer,) = kbf.load(published).predict([ITEMS[kind]])
    if kind == "question_answering":
        assert answer["answer"] in ITEMS[kind]["context"] and answer["answer"].strip()
    if kind == "token_classification":
        assert answer["words"] == ITEMS[kind] and len(answer["tags"]) == 3

"""Pseudo-log-likelihoods are those of `transformers` with one mask at a time, in few batches of bounded size."""

import math

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.prediction.sentence_scorer import SentenceScorer, copy_with_masks
from tests.prediction.models import LONGEST, PIECES, Watched, make_backbone, save, save_masked_lm

SENTENCES = [
    "Paris is the w4 of w5.",
    "paris is the w5 of w4.",
    "w1",
    "unheard w2 \u4e2d w3",  # three unknown words
    "w1 w2 w3 w4 w5 w6 w7 w8 w9 w10 w11 w12 w13 w14 w15 w16 w17 w18 w19",
    "the [MASK] cat",  # `[MASK]` in a text is three words
    "the" * 50,  # one word
]
LONG = "w1 " * (LONGEST - 2)
# float32 rounding (6e-8) of log-probabilities up to 10 through sums of up to 40 terms, relative to their sum.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_masked_lm(tmp_path_factory.mktemp("masked_lm"))


@pytest.fixture(scope="module")
def pretrainer_folder(tmp_path_factory):
    return save(kbf.BertPretrainer(make_backbone()), tmp_path_factory.mktemp("pretrainer"))


def encode(folder, sentences):
    tokenizer = read_tokenizer(folder)
    return [np.array([2, *tokenizer.encode(text), 3], np.int32) for text in sentences]


def score_naively(folder, sentences) -> list[float]:
    """Mask one token at a time, each by itself, as equation 1 of Salazar et al. 2020 says."""
    torch = pytest.importorskip("torch", reason="the reference needs torch")
    transformers = pytest.importorskip("transformers", reason="the reference needs transformers")
    tokenizer = transformers.BertTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    scores = []
    for text in sentences:
        words = tokenizer(text, return_tensors="pt", split_special_tokens=True)["input_ids"]
        total = 0.0
        for position in range(1, words.shape[1] - 1):
            masked = words.clone()
            masked[0, position] = tokenizer.mask_token_id
            with torch.no_grad():
                logits = model(input_ids=masked).logits[0, position].double()
            total += torch.log_softmax(logits, -1)[words[0, position]].item()
        scores.append(total)
    return scores


@pytest.mark.parametrize("kind", ["folder", pytest.param("pretrainer_folder", marks=pytest.mark.any_backend)])
def test_scores_are_those_of_one_mask_at_a_time(request, kind):
    folder = request.getfixturevalue(kind)
    found = SentenceScorer(folder, batch_positions=256).score(encode(folder, SENTENCES))
    assert found.dtype == np.float64 and found.shape == (len(SENTENCES),)
    np.testing.assert_allclose(found, score_naively(folder, SENTENCES), rtol=TOLERANCE)


def test_score_of_a_uniform_model_counts_the_tokens(tmp_path):
    model = kbf.MaskedLM(make_backbone(use_pooler=False))
    folder = save(model, tmp_path)
    scorer = SentenceScorer(folder)
    for variable in scorer.model.weights:
        variable.assign(np.zeros(variable.shape, "float32"))
    sentences = encode(folder, ["w1", "w1 w2 w3", "unheard"])
    np.testing.assert_allclose(scorer.score(sentences), -math.log(len(PIECES)) * np.array([1, 3, 1]), rtol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.any_backend  # of code that never asks which one it is
def test_batches_are_bounded_and_of_few_shapes(folder, monkeypatch):
    scorer = SentenceScorer(folder, batch_positions=256)
    sentences = encode(folder, [*SENTENCES, LONG])
    expected = scorer.score(sentences)
    assert expected[-1] == pytest.approx(score_naively(folder, [LONG])[0], rel=TOLERANCE)
    for compiles in (True, False):
        watched = Watched(scorer.model, compiles)
        monkeypatch.setattr(scorer, "model", watched)
        seen = []
        found = scorer.score(sentences, lambda batches, seen=seen: seen.extend(batches) or batches)
        np.testing.assert_allclose(found, expected, rtol=TOLERANCE)
        assert max(rows * width for rows, width in watched.asked) <= 256
        assert watched.answered == [(rows, 1) for rows, _ in watched.asked]
        assert len(seen) == len(watched.asked) > 60  # of 126 copies of the longest sentence two are in a batch
        if compiles:
            assert len({*watched.asked}) <= 12
        monkeypatch.setattr(scorer, "model", watched.model)


def test_only_the_masked_token_meets_the_vocabulary(folder):
    scorer = SentenceScorer(folder)
    logits = keras.Model(scorer.model.input, scorer.model.get_layer("mlm").output)
    inputs = scorer._make_inputs(copy_with_masks(encode(folder, ["w1 w2 w3"])), np.arange(3), 8)
    assert logits.predict_on_batch(inputs).shape == (3, 1, len(PIECES))


def test_each_token_is_masked_once():
    copies = copy_with_masks([np.array([2, 7, 8, 3]), np.array([2, 9, 3])])
    assert copies.sentences.tolist() == [0, 0, 1]
    assert copies.positions.tolist() == [1, 2, 1]
    assert copies.lengths.tolist() == [4, 4, 3]


def test_no_sentences_have_no_scores(folder):
    assert SentenceScorer(folder).score([]).tolist() == []
    with pytest.raises(ValueError, match="`batch_positions` must be at least 1"):
        SentenceScorer(folder, batch_positions=0)

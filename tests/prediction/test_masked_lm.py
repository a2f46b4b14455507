"""Masks in texts are filled each by itself, in the text as written; sentences are scored as `transformers` would.

Logits are only made where masks are. Pseudo-log-likelihoods are those of one mask at a time, in few batches of bounded
size.
"""

import math

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.prediction.masked_lm import MaskedCopies, SentenceScorer, choose_tokens, put
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
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
def filler(folder):
    return kbf.load(folder, task="fill_mask", top_k=3)


def test_sequence_is_the_text_as_written():
    parts = ["Paris, ", "  the ", " of"]
    tokenizer = WordPieceTokenizer(PIECES)
    assert put(tokenizer, parts, 0, "is") == "Paris, is  the [MASK] of"
    assert put(tokenizer, parts, 1, "cat") == "Paris, [MASK]  the cat of"
    assert put(tokenizer, parts, 1, "##s") == "Paris, [MASK]  thes of"  # a continuation joins its word


def test_only_the_mask_is_special_in_a_text(filler):
    example = filler.make_example("The [MASK][MASK] of w1 [SEP]")
    pieces = [PIECES[number] for number in example.token_ids]
    assert pieces == ["[CLS]", "the", "[MASK]", "[MASK]", "of", "w1", *["[UNK]"] * 3, "[SEP]"]


def test_likeliest_tokens_come_first_and_of_equals_the_lower_id():
    tokens, scores = choose_tokens(np.log(np.array([1, 4, 2, 4, 5], "float32")), 3)
    assert tokens == [4, 1, 3]
    np.testing.assert_allclose(scores, [5 / 16, 4 / 16, 4 / 16], rtol=1e-6)
    tokens, scores = choose_tokens(np.full(6, 1000, "float32"), 2)  # no overflow, and no more than asked for
    assert tokens == [0, 1] and scores == pytest.approx([1 / 6] * 2)


def test_fills_are_named_in_plain_values(filler):
    ((fills,),) = filler.predict(["Paris is the [MASK]."])
    assert len(fills) == 3
    for fill in fills:
        assert set(fill) == {"score", "token", "token_str", "sequence"}
        assert fill["token_str"] == PIECES[fill["token"]]
        assert fill["sequence"] == put(filler.tokenizer, ["Paris is the ", "."], 0, fill["token_str"])
        assert type(fill["score"]) is float and type(fill["token"]) is int
    assert 1 > fills[0]["score"] > fills[1]["score"] > fills[2]["score"] > 0


def test_logits_are_only_made_at_the_masks(filler, monkeypatch):
    watched = Watched(filler.model)
    monkeypatch.setattr(filler, "model", watched)
    filler.predict([f"w1 [MASK] {'w2 ' * count}" for count in range(60)])
    assert watched.asked == [(64, 64)] and watched.answered == [(64, 1, 50)]
    filler.predict(["[MASK] [MASK] [MASK]", "w1 [MASK]"])
    assert watched.answered[-1] == (8, 4, 50)


def test_answer_depends_on_no_other_text(filler):
    texts = ["the [MASK] is", "[MASK] [MASK] w1 w2 w3 w4 w5 w6 w7 w8 w9 [MASK]", "w5 [MASK]"]
    together = filler.predict(texts)
    assert [len(masks) for masks in together] == [1, 3, 1]
    for text, masks in zip(texts, together, strict=True):
        for one, other in zip(masks, filler.predict([text])[0], strict=True):
            assert [fill["token"] for fill in one] == [fill["token"] for fill in other]
            assert [fill["score"] for fill in one] == pytest.approx([fill["score"] for fill in other], abs=1e-6)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("the cat", r"A text must hold \[MASK\]. Received: 'the cat'"),
        ("the [mask]", r"A text must hold \[MASK\]"),
        ("w1 " * LONGEST + "[MASK]", r"among the first 128 tokens, .* Received: 1 of them, 0 there"),
        (["a", "[MASK]"], r"must have the texts text"),
    ],
)
def test_text_without_a_mask_is_refused_with_its_number(filler, item, message):
    with pytest.raises(ValueError, match=f"^Item 3: .*{message}") as caught:
        filler.predict(["[MASK]", {"text": "[MASK]"}, item])
    assert "\n" not in str(caught.value)


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
    copies = MaskedCopies(encode(folder, ["w1 w2 w3"]), np.zeros(3, int), np.arange(1, 4))
    inputs = scorer._make_inputs(copies, np.arange(3), 8)
    assert logits.predict_on_batch(inputs).shape == (3, 1, len(PIECES))


def test_each_token_is_masked_once(folder, monkeypatch):
    scorer = SentenceScorer(folder)
    make_inputs, masked = scorer._make_inputs, []

    def watch(copies, rows, width):
        masked.extend((copies.sentences[row], copies.positions[row], copies.lengths[row]) for row in rows)
        return make_inputs(copies, rows, width)

    monkeypatch.setattr(scorer, "_make_inputs", watch)
    scorer.score([np.array([2, 7, 8, 3]), np.array([2, 9, 3])])
    assert sorted({*masked}) == [(0, 1, 4), (0, 2, 4), (1, 1, 3)]


def test_no_sentences_have_no_scores(folder):
    assert SentenceScorer(folder).score([]).tolist() == []
    with pytest.raises(ValueError, match="`batch_positions` must be at least 1"):
        SentenceScorer(folder, batch_positions=0)

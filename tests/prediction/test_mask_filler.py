"""Masks in texts: each is filled by itself in the text as written, and logits are only made where masks are."""

import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.prediction.mask_filler import choose_tokens, encode_masked, put
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from tests.prediction.models import LONGEST, PIECES, Watched, save_masked_lm


@pytest.fixture(scope="module")
def filler(tmp_path_factory):
    return kbf.load(save_masked_lm(tmp_path_factory.mktemp("masked_lm")), task="fill_mask", top_k=3)


def test_sequence_is_the_text_as_written():
    parts = ["Paris, ", "  the ", " of"]
    tokenizer = WordPieceTokenizer(PIECES)
    assert put(tokenizer, parts, 0, "is") == "Paris, is  the [MASK] of"
    assert put(tokenizer, parts, 1, "cat") == "Paris, [MASK]  the cat of"
    assert put(tokenizer, parts, 1, "##s") == "Paris, [MASK]  thes of"  # a continuation joins its word


def test_only_the_mask_is_special_in_a_text():
    ids = encode_masked(WordPieceTokenizer(PIECES), "The [MASK][MASK] of w1 [SEP]", 16)
    pieces = [PIECES[number] for number in ids]
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

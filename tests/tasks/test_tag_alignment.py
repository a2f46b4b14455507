"""Words and spans that a model does not see whole are counted as a slow tokenizer finds them."""

import os
from collections import Counter
from pathlib import Path

import pytest

from keras_bert_flow.tasks.core.texts import describe_unreachable
from keras_bert_flow.tasks.formats.conll import read_tagged_words
from keras_bert_flow.tasks.formats.tagged_words import TaggedWords
from keras_bert_flow.tasks.token_classification import TokenClassification
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES
from tests.oracles.google_tokenizer import google_pieces

pytestmark = pytest.mark.any_backend
DATA = os.environ.get("KBF_TEST_DATA")
PIECES = [*SPECIAL_PIECES, "jan", "##sen", "gent", "-", "in"]


def count(pieces, examples, length, cased=False):
    tokenizer, task = WordPieceTokenizer(pieces, cased=cased), TokenClassification().learn(examples)
    return task.count_unreachable(tokenizer, examples, task.encode(tokenizer, examples, length))


def test_hidden_words_and_cut_spans_are_counted_by_reason():
    words = ("Jansensensen", "Gent-☃", "☃", "\u200b", "in", "Jan")
    sentence = TaggedWords(words, ("B-PER", "B-LOC", "O", "O", "B-LOC", "I-LOC"))
    assert count(PIECES, [sentence], 20) == {"words": {"total": 6, "no_piece": 1, "unknown": 2}}
    found = count(PIECES, [sentence], 5)  # room for three pieces
    assert found == {"words": {"total": 6, "cut": 1, "no_piece": 1, "unknown": 2}}
    names = TaggedWords(("in", *["Jan"] * 4, "in"), ("O", "B-PER", *["I-PER"] * 3, "O"))
    assert count(PIECES, [names, names], 5) == {"spans": {"total": 2, "cut": 2}}
    assert count(PIECES, [names], 7) == {}
    assert describe_unreachable("train", found | {"spans": {"total": 2, "cut": 2}}) == (
        "train: 4 of 6 words are not shown to the model as written (66.67%): 1 longer than sequence_length, 1 dropped "
        "by the tokenizer, 2 with [UNK]; 2 of 2 spans are not shown to the model whole (100.00%): 2 cut by every "
        "window."
    )


@pytest.mark.skipif(not DATA, reason="KBF_TEST_DATA is not set")
@pytest.mark.parametrize(("vocabulary", "length"), [("chinese", 12), ("cased", 9)])
def test_real_words_and_spans_are_counted_as_by_hand(vocabulary, length):
    pieces = Path(DATA, f"vocab/{vocabulary}_L-12_H-768_A-12.vocab.txt").read_text(encoding="utf-8").split("\n")
    pieces = [piece for piece in pieces if piece not in ("", "##j", "##p")]  # so that some words are [UNK]
    cased = vocabulary == "cased"
    examples = read_tagged_words(Path(DATA, "conll2002_ned/testa.txt"), max_examples=600)
    room, known = length - 2, set(pieces)
    shown = {word: google_pieces(word, known, cased) for example in examples for word in example.words}
    words = Counter(word for example in examples for word in example.words)
    reasons = Counter()
    for word, times in words.items():
        found = shown[word]
        reason = "cut" if len(found) > room else "unknown" if "[UNK]" in found else None
        reasons[reason] += times
    lengths = [0, 0]  # IOB2: a span is B- and the I- behind it
    for example in examples:
        span = 0
        for word, tag in [*zip(example.words, example.tags, strict=True), ("", "O")]:
            if not tag.startswith("I-"):
                lengths = [lengths[0] + (span > 0), lengths[1] + (span > room)]
                span = 0
            if tag != "O":
                span += min(len(shown[word]), room)
    found = count(pieces, examples, length, cased)
    # A span that fits into a window may still lie across the border of two.
    assert found["spans"]["total"] == lengths[0] and lengths[1] <= found["spans"]["cut"] < lengths[0] / 4
    assert found["words"] == {"total": words.total(), "cut": reasons["cut"], "unknown": reasons["unknown"]}
    assert lengths[1] > 5 and reasons["cut"] > 2 and reasons["unknown"] > 0

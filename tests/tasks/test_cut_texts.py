"""Texts that are longer than a model reads are counted, by every kind of task that cuts them."""

import numpy as np
import pytest

from keras_bert_flow.tasks.core.task import Features
from keras_bert_flow.tasks.core.texts import CutTexts, describe_cut
from keras_bert_flow.tasks.registry import make_task
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES

TOKENIZER = WordPieceTokenizer([*SPECIAL_PIECES, "a", "b"])
CHOICE = {"context": "context", "question": None, "choices": ("x", "y")}


def features_of(lengths, sequence_length):
    rows = [np.zeros(min(length, sequence_length), np.int32) for length in lengths]
    places = np.arange(len(rows), dtype=np.int32)
    return Features(rows, places, places, sequence_length=sequence_length, full_lengths=np.array(lengths))


@pytest.mark.parametrize(
    ("kind", "settings", "item", "texts", "tokens"),
    [
        ("classification", {"labels": ("x", "y")}, "a " * 20, 1, 22),
        ("classification", {"labels": ("x", "y"), "text_pair": "p"}, ["a " * 20, "b " * 9], 1, 32),
        ("regression", {}, "a " * 20, 1, 22),
        ("multi_label", {"labels": ("x", "y")}, "a " * 20, 1, 22),
        ("sentence_embedding", {}, ["a " * 20, "b"], 2, 25),
        ("multiple_choice", CHOICE, {"context": "a " * 20, "choices": ["b", "b b"]}, 2, 49),
    ],
)
def test_every_kind_counts_what_it_cuts(kind, settings, item, texts, tokens):
    task, cut = make_task(kind, **settings), CutTexts()
    examples = [task.make_example(item)]
    cut.add(task.encode(TOKENIZER, examples, 50))
    assert describe_cut(cut.counters) == "" and cut.counters["texts_cut"] == 0
    cut = CutTexts()
    features = task.encode(TOKENIZER, examples, 10)
    cut.add(features)
    left = sum(map(len, features.token_ids))
    assert (cut.counters["texts"], cut.counters["tokens"], cut.counters["tokens_cut"]) == (texts, tokens, tokens - left)
    assert cut.counters["texts_cut"] == sum(len(ids) == 10 for ids in features.token_ids) > 0
    assert sorted(task.list_texts(examples[0])) == sorted(TEXT for TEXT in flatten(item))


def flatten(item):
    if isinstance(item, str):
        return [item]
    return [text for part in (item.values() if isinstance(item, dict) else item) for text in flatten(part)]


def test_tasks_with_windows_cut_nothing():
    task, cut = make_task("question_answering"), CutTexts()
    cut.add(task.encode(TOKENIZER, [task.make_example(["a", "b " * 100])], 30))
    assert cut.counters == {} and describe_cut(cut.counters) == "" and describe_cut({}) == ""


def test_length_that_cuts_few_is_the_least_that_cuts_one_in_a_hundred():
    lengths = [*range(1, 201)]
    cut = CutTexts()
    for some in (lengths[:50], lengths[50:]):
        cut.add(features_of(some, 100))
    counters = cut.counters
    assert counters["length_that_cuts_few"] == 198  # two of 200 are longer
    assert (counters["texts"], counters["texts_cut"], counters["tokens_cut"]) == (200, 100, sum(range(1, 101)))
    assert describe_cut(cut.counters) == (
        "100 of 200 texts are longer than 100 tokens (sequence_length): 25.1 % of the tokens are cut off and not read; "
        "198 would cut at most 1 %."
    )
    few = CutTexts()
    few.add(features_of(lengths, 199))
    line = describe_cut(few.counters)
    assert "1 of 200" in line and line.endswith("at most 1 % of the texts are longer.")

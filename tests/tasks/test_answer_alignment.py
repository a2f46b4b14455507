import os
from pathlib import Path

import numpy as np
import pytest

from keras_bert_flow.tasks.core.texts import describe_unreachable
from keras_bert_flow.tasks.formats.squad import Answer, ContextQuestion, read_questions
from keras_bert_flow.tasks.question_answering import QuestionAnswering, explain_answers
from keras_bert_flow.text.tokenizers.normalization import normalize_text
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES
from tests.oracles.answer_alignment import check_alignment
from tests.oracles.answer_spans import slow_windows
from tests.tasks.questions import TOKENIZER, ask

DATA = os.environ.get("KBF_TEST_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="KBF_TEST_DATA is not set")


def perfect_logits(features):
    return {
        name: [np.eye(1, length, place)[0] for length, place in zip(features.lengths, places, strict=True)]
        for name, places in features.labels.items()
    }


def explain(task, tokenizer, examples, length):
    """Return what is found without decoding, by reason, in the order of the examples; equal to what decoding finds."""
    found = explain_answers(examples, task.encode(tokenizer, examples, length), task.max_answer_tokens)
    decoded = check_alignment(task, tokenizer, examples, length)
    assert not decoded.pop("unexplained")
    decoded.pop("exact")
    assert found == {reason: [pair[:2] for pair in pairs] for reason, pairs in decoded.items()}
    return {reason: len(pairs) for reason, pairs in found.items() if pairs}


def test_alignment_names_the_reason_of_each_answer():
    examples = [
        ask("ran home, a b", "home", "home, a", "hom", "home, a b", name="x"),
        ask("ran home, a b", "b", is_impossible=False, name="y"),
        ask("ran home\u200b , a b", "home\u200b", name="z"),
        ask("a b c d e f", "d e", name="cut"),
        ask("a", is_impossible=True),
    ]
    found = check_alignment(
        QuestionAnswering(max_answer_tokens=3, stride=4, null_threshold=0.0), TOKENIZER, examples, 10
    )
    assert found == {
        "exact": [("x", "home", "home"), ("x", "home, a", "home, a"), ("y", "b", "b"), ("cut", "d e", "d e")],
        "no_piece": [],
        "too_long": [("x", "home, a b", "home")],
        "cut": [],
        "inside_a_piece": [("x", "hom", "home")],
        "edge_dropped": [("z", "home\u200b", "home")],
        "unexplained": [],
    }
    found = check_alignment(QuestionAnswering(stride=4), TOKENIZER, examples[3:4], 9)
    assert [reason for reason, cases in found.items() if cases] == ["cut"]
    assert explain(QuestionAnswering(stride=4), TOKENIZER, examples, 9) == {
        "cut": 2,
        "inside_a_piece": 1,
        "edge_dropped": 1,
    }


SCRIPTS = {
    "russian": "Съёмки шли в 1850-х годах в Санкт-Петербурге, где жил И. Ньютон. ",
    "arabic": "كَتَبَ الكاتبُ في القاهرة عام ١٩٥٠ كتابًا\u200f جديدًا. ",
    "chinese": "他于1850年住在北京市,写了《红楼梦》\u200b一书。",
    "korean": "서울에서 1950년에 책을 썼다. ",
    "marks": "cafe\u0301 a\u0301\u0327b \u00adx\u200b\u200b y\x07z ﬁn ½. ",
}


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("cased", [True, False])
def test_reasons_are_those_that_decoding_finds_in_any_script(script, cased):
    context = SCRIPTS[script] * 3
    letters = sorted(set("".join(normalize_text(context, cased).split())))
    tokenizer = WordPieceTokenizer(
        [*SPECIAL_PIECES, *letters, *(f"##{x}" for x in letters[::2]), "18", "##50", "wo", "##50-"], cased=cased
    )
    rng = np.random.default_rng(4)
    examples = []
    for number in range(60):
        start = int(rng.integers(len(context) - 1))
        end = min(start + 1 + int(rng.geometric(0.12)), len(context))
        gold = [Answer(context[start:end], start)] if context[start:end].strip() else []
        examples.append(ContextQuestion(str(number), "?", context, tuple(gold), not gold))
    counts = [explain(QuestionAnswering(stride=7, max_answer_tokens=6), tokenizer, examples, n) for n in (12, 24, 300)]
    assert {"too_long", "cut"} <= counts[0].keys() | counts[1].keys()
    assert "cut" not in counts[2]
    assert script == "chinese" or "inside_a_piece" in counts[2]


def test_answers_out_of_reach_are_counted_and_so_are_their_questions():
    examples = [
        ask("ran home, a b", "home", "hom", name="x"),
        ask("ran home, a b", "hom", name="y"),
        ask("a", is_impossible=True),
    ]
    task = QuestionAnswering()
    found = task.count_unreachable(TOKENIZER, examples, task.encode(TOKENIZER, examples, 20))
    assert found == {"answers": {"total": 3, "inside_a_piece": 2}, "questions": {"total": 2, "no_answer": 1}}
    assert describe_unreachable("dev", found) == (
        "dev: 2 of 3 answers cannot be given exactly (66.67%): 2 beginning or ending inside a piece; 1 of 2 questions "
        "have no answer that can be given exactly (50.00%): 1 with those answers only."
    )
    assert task.count_unreachable(TOKENIZER, examples[2:], task.encode(TOKENIZER, examples[2:], 20)) == {}
    assert describe_unreachable("dev", {}) == ""


def read_real(name, vocabulary="uncased"):
    file = Path(DATA, f"vocab/{vocabulary}_L-12_H-768_A-12.vocab.txt")
    tokenizer = WordPieceTokenizer.from_file(file, cased=vocabulary == "cased")
    return tokenizer, read_questions(Path(DATA, f"squad/{name}.json"))


@needs_data
@pytest.mark.parametrize(
    ("vocabulary", "name", "length", "stride", "counts"),
    [
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("uncased", "train-small", 384, 128, {"exact": 8139, "too_long": 13, "inside_a_piece": 25}),
                ("uncased", "train-small", 96, 64, {"exact": 8100, "too_long": 13, "cut": 39, "inside_a_piece": 25}),
                ("cased", "train-small", 384, 128, {"exact": 8128, "too_long": 23, "inside_a_piece": 26}),
                ("uncased", "dev-v1.1", 384, 128, {"exact": 18133, "too_long": 21, "inside_a_piece": 62}),
                ("cased", "dev-v1.1", 384, 128, {"exact": 18127, "too_long": 29, "inside_a_piece": 60}),
            )
        ),
    ],
)
def test_every_real_answer_is_given_back_or_explained(vocabulary, name, length, stride, counts):
    tokenizer, examples = read_real(name, vocabulary)
    found = explain(QuestionAnswering(stride=stride), tokenizer, examples, length)
    assert found == {reason: count for reason, count in counts.items() if reason != "exact"}
    assert sum(counts.values()) == sum(len(set(example.answers)) for example in examples)


@needs_data
def test_spans_of_chinese_pieces_are_given_back():
    tokenizer = WordPieceTokenizer.from_file(Path(DATA, "vocab/chinese_L-12_H-768_A-12.vocab.txt"))
    rng, examples = np.random.default_rng(8), []
    contexts = Path(DATA, "corpus/wiki_zh.txt").read_text(encoding="utf-8").split("\n\n")[:150]
    for number, context in enumerate(contexts):
        _, starts, ends = tokenizer.encode_with_offsets(context)
        first = int(rng.integers(len(starts)))
        last = min(first + int(rng.integers(30)), len(starts) - 1)
        gold = Answer(context[starts[first] : ends[last]], int(starts[first]))
        examples.append(ContextQuestion(str(number), "谁?", context, (gold,)))
    found = check_alignment(QuestionAnswering(), tokenizer, examples, 384)
    assert {reason: len(cases) for reason, cases in found.items() if cases} == {"exact": 150}


@pytest.mark.slow
@needs_data
def test_perfect_logits_score_what_alignment_promises():
    tokenizer, examples = read_real("dev-v1.1")
    examples = examples[::10]
    task = QuestionAnswering()
    features = task.encode(tokenizer, examples, 384)
    scores = task.score(examples, task.decode(perfect_logits(features), features, examples))
    assert 0.995 < scores["exact"] <= scores["f1"] <= 1.0
    lengths = features.lengths
    assert lengths.max() == 384 and len(features) > len(examples)
    for row, window in zip(features.token_ids, features.details, strict=True):
        assert len(row) == window.first + len(window.starts) + 1


@needs_data
def test_rows_of_real_questions_hold_question_and_window():
    tokenizer, examples = read_real("dev-v1.1")
    examples = examples[:300]
    features = QuestionAnswering(stride=50, max_question_tokens=12).encode(tokenizer, examples, 128)
    expected = []
    for example in examples:
        question = tokenizer.encode(example.question)[:12].tolist()
        ids, starts, ends = tokenizer.encode_with_offsets(example.context)
        for begin, end in slow_windows(len(ids), 128 - 3 - len(question), 50):
            row = [tokenizer.cls_id, *question, tokenizer.sep_id, *ids[begin:end].tolist(), tokenizer.sep_id]
            expected.append((example.id, row, starts[begin:end].tolist(), ends[begin:end].tolist()))
    found = zip(features.examples, features.token_ids, features.details, strict=True)
    assert [
        (examples[owner].id, row.tolist(), window.starts.tolist(), window.ends.tolist()) for owner, row, window in found
    ] == expected
    assert len(expected) > 1.5 * len(examples)

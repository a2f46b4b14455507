"""Questions about contexts: rows and windows, and the answers that logits stand for, against slow ways to find them."""

import dataclasses
import json
import math

import numpy as np
import pytest

from keras_bert_flow.tasks.formats.squad import write_answers
from keras_bert_flow.tasks.question_answering import QuestionAnswering
from tests.oracles.answer_alignment import check_alignment
from tests.oracles.answer_spans import all_spans, best_window, null_score, slow_windows
from tests.tasks.questions import LETTERS, TOKENIZER, ask, pieces_of


def random_logits(features, rng):
    return {name: [rng.normal(size=n).astype(np.float32) for n in features.lengths] for name in ("start", "end")}


def predict(task, example, sequence_length=64, **logits):
    """Decode one row whose logits are 0 but where `logits` gives place → value, places counted in the row."""
    features = task.encode(TOKENIZER, [example], sequence_length)
    outputs = {name: [np.zeros(n, np.float32) for n in features.lengths] for name in ("start", "end")}
    for name, values in logits.items():
        for place, value in values.items():
            outputs[name][0][place] = value
    return task.decode(outputs, features, [example])[0]


def test_a_row_is_question_and_context():
    features = QuestionAnswering().encode(TOKENIZER, [ask("Home, ran Abc.", "Home", "Abc")], 64)
    assert [pieces_of(row) for row in features.token_ids] == ["[CLS] who ? [SEP] home , ran a ##b ##c [UNK] [SEP]"]
    assert features.token_ids[0].dtype == features.first_lengths.dtype == features.examples.dtype == np.int32
    assert (features.first_lengths.tolist(), features.examples.tolist()) == ([4], [0])
    assert {name: labels.tolist() for name, labels in features.labels.items()} == {"start": [4], "end": [4]}
    assert features.labels["start"].dtype == np.int32


def test_long_contexts_are_read_in_windows():
    task = QuestionAnswering(stride=2)
    features = task.encode(TOKENIZER, [ask("a b c d e f g", "c d"), ask("a", "a")], 9)
    rows = [pieces_of(row).removeprefix("[CLS] who ? [SEP] ") for row in features.token_ids]
    assert rows == ["a b c d [SEP]", "c d e f [SEP]", "e f g [SEP]", "a [SEP]"]
    assert features.examples.tolist() == [0, 0, 0, 1]
    assert features.labels["start"].tolist() == [6, 4, 0, 4]
    assert features.labels["end"].tolist() == [7, 5, 0, 4]
    assert [window.is_best.astype(int).tolist() for window in features.details[:3]] == [
        [1, 1, 1, 0],
        [0, 1, 1, 0],
        [0, 1, 1],
    ]


def test_windows_without_the_whole_answer_say_that_it_is_not_there():
    features = QuestionAnswering(stride=4).encode(TOKENIZER, [ask("a b c d e f g h", "d e")], 9)
    assert len(features) == 2
    assert features.labels["start"].tolist() == features.labels["end"].tolist() == [0, 0]


def test_labels_take_every_piece_that_the_answer_touches():
    features = QuestionAnswering().encode(
        TOKENIZER, [ask("ran  Hömé\u200b , a", "mé\u200b "), ask("ran", is_impossible=True)], 64
    )
    # [CLS] who ? [SEP] ran home , a: "mé" is inside of "home"
    assert (features.labels["start"].tolist(), features.labels["end"].tolist()) == ([5, 0], [5, 0])


def test_questions_without_labels_have_none():
    examples = [ask("a", "a"), ask("a b")]
    assert QuestionAnswering().encode(TOKENIZER, examples, 64).labels == {}


def test_long_questions_lose_their_end():
    task = QuestionAnswering(max_question_tokens=2)
    features = task.encode(TOKENIZER, [ask("ran", "ran", question="Who ran home?")], 64)
    assert pieces_of(features.token_ids[0]) == "[CLS] who ran [SEP] ran [SEP]"
    assert len(task.encode(TOKENIZER, [ask("ran", question="Who ran home?")], 6).token_ids[0]) == 6
    with pytest.raises(ValueError, match=r"^here: .* Received: sequence_length=5, 1 too few"):
        task.encode(TOKENIZER, [dataclasses.replace(ask("ran", question="Who ran home?"), place="here")], 5)


@pytest.mark.parametrize(
    ("room", "stride", "counts"),
    [
        *((room, stride, range(1, 30)) for room in (1, 2, 5, 9, 40) for stride in (1, 3, 4, 100)),
        (320, 128, range(321, 700, 31)),  # where the length of the last window counts too
    ],
)
def test_windows_equal_the_oracle(room, stride, counts):
    for count in counts:
        features = QuestionAnswering(stride=stride).encode(TOKENIZER, [ask("a " * count)], room + 5)
        windows = slow_windows(count, room, stride)
        best = [best_window(windows, piece) for piece in range(count)]
        assert len(features) == len(windows)
        for number, ((begin, end), window) in enumerate(zip(windows, features.details, strict=True)):
            assert window.starts.tolist() == list(range(2 * begin, 2 * end, 2))
            assert window.is_best.tolist() == [best[piece] == number for piece in range(begin, end)]


def test_decode_equals_the_oracle():
    rng = np.random.default_rng(1)
    for trial in range(300):
        task = QuestionAnswering(
            stride=int(rng.integers(1, 12)),
            max_answer_tokens=int(rng.integers(1, 8)),
            n_best=int(rng.integers(1, 30)),
            null_threshold=[None, 0.0, -2.0, 2.0][trial % 4],
        )
        examples = [ask(" ".join(rng.permutation(LETTERS)[: rng.integers(1, 25)]), name=str(n)) for n in range(3)]
        features = task.encode(TOKENIZER, examples, int(rng.integers(6, 24)))
        outputs = random_logits(features, rng)
        for number, (example, found) in enumerate(zip(examples, task.decode(outputs, features, examples), strict=True)):
            rows = np.flatnonzero(features.examples == number)
            starts, ends = ([outputs[name][row].tolist() for row in rows] for name in ("start", "end"))
            first = int(features.first_lengths[rows[0]])
            room = max(len(starts[0]) - first - 1, 1)
            count = (len(example.context) + 1) // 2
            spans = all_spans(slow_windows(count, room, task.stride), first, starts, ends, task.max_answer_tokens)
            assert_is_best(task, example, found, spans, null_score(starts, ends))


def assert_is_best(task, example, found, spans, null):
    """Compare a prediction about a context of single letters, no letter twice, with all of its spans."""
    difference = null - spans[0][0]
    assert found["null_difference"] == pytest.approx(difference)
    listed = [entry for entry in found["n_best"] if entry["answer"]]
    assert len(listed) == min(len(spans), task.n_best)
    for entry, (score, first, last) in zip(listed, spans, strict=False):
        assert (entry["start"], entry["end"]) == (2 * first, 2 * last + 1)
        assert entry["answer"] == example.context[2 * first : 2 * last + 1]
        assert entry["score"] == pytest.approx(score)
    is_null = task.null_threshold is not None and difference > task.null_threshold
    expected = {"answer": "", "start": None, "end": None} if is_null else listed[0]
    assert found["id"] == example.id
    assert {name: found[name] for name in ("answer", "start", "end")} == {
        name: expected[name] for name in ("answer", "start", "end")
    }
    scores = [entry["score"] for entry in found["n_best"]]
    assert scores == sorted(scores, reverse=True)
    assert len(scores) - len(listed) == (task.null_threshold is not None)
    for entry in found["n_best"]:
        assert entry["probability"] == pytest.approx(math.exp(entry["score"]) / sum(map(math.exp, scores)))
        if entry["answer"] == found["answer"]:
            assert found["probability"] == entry["probability"]


def test_an_answer_is_listed_once_where_it_scores_highest():
    example = ask("ran home ran")
    found = predict(QuestionAnswering(max_answer_tokens=1), example, start={4: 1, 5: 2, 6: 3})
    assert [(entry["answer"], entry["start"]) for entry in found["n_best"]] == [("ran", 9), ("home", 4)]


def test_decoded_answers_are_legal_spans_of_the_context():
    # [CLS] who ? [SEP] ran home , a [SEP]
    example = ask("Ran Hómé, a")
    task = QuestionAnswering(max_answer_tokens=2)
    best = predict(task, example, start={1: 9, 5: 4, 8: 9}, end={2: 9, 4: 5, 6: 2, 8: 9})
    assert (best["answer"], best["start"], best["end"]) == ("Hómé,", 4, 9)
    assert predict(task, example, start={4: 9, 6: 1}, end={7: 9})["answer"] == ", a"  # not three pieces
    assert predict(task, example, start={0: 50}, end={0: 50})["null_difference"] == 100.0
    assert predict(task, example, start={0: 50}, end={0: 50})["answer"] != ""


def test_decode_says_that_there_is_no_answer_above_the_threshold():
    example = ask("ran home")
    for threshold, expected in [(0.9, ""), (1.0, "home"), (1.1, "home"), (None, "home")]:
        task = QuestionAnswering(null_threshold=threshold)
        found = predict(task, example, start={0: 2, 5: 1}, end={0: 1, 5: 1})
        assert (found["answer"], found["null_difference"]) == (expected, 1.0)


def test_the_null_score_is_the_lowest_of_all_windows():
    task, example = QuestionAnswering(stride=2, null_threshold=0.0), ask("a b c d e f")
    features = task.encode(TOKENIZER, [example], 9)
    outputs = {name: [np.zeros(n, np.float32) for n in features.lengths] for name in ("start", "end")}
    outputs["start"][0][0] = 7.0
    outputs["end"][1][0] = -3.0
    assert task.decode(outputs, features, [example])[0]["null_difference"] == -3.0


@pytest.mark.parametrize("threshold", [None, 0.0])
def test_a_context_without_pieces_has_no_answer(threshold):
    task, example = QuestionAnswering(null_threshold=threshold), ask("\u200b\u200b", "\u200b")
    features = task.encode(TOKENIZER, [example], 64)
    assert pieces_of(features.token_ids[0]) == "[CLS] who ? [SEP] [SEP]"
    assert features.labels["start"].tolist() == [0]
    found = task.decode(random_logits(features, np.random.default_rng(1)), features, [example])[0]
    assert (found["answer"], found["start"], found["probability"], len(found["n_best"])) == ("", None, 1.0, 1)
    assert check_alignment(task, TOKENIZER, [example], 64)["no_piece"] == [("q", "\u200b", "")]


def test_decode_refuses_what_is_no_logits():
    task, example = QuestionAnswering(), ask("ran")
    features = task.encode(TOKENIZER, [example], 64)
    for start, message in [
        ([np.zeros(9)], "'start' must have one logit for each token.*of other lengths"),
        ([], "'start' must have.*Received: 0 rows for 1"),
        ([[0, np.nan, 0, 0, 0, 0]], "'start' must be finite.*in row 0"),
        ([[0, np.inf, 0, 0, 0, 0]], "'start' must be finite"),
    ]:
        with pytest.raises(ValueError, match=message):
            task.decode({"start": start, "end": [np.zeros(6)]}, features, [example])


def test_predictions_are_plain_values_that_json_takes(tmp_path):
    task, examples = QuestionAnswering(null_threshold=0.0), [ask("ran home a b c", name=str(n)) for n in range(4)]
    features = task.encode(TOKENIZER, examples, 64)
    predictions = task.decode(random_logits(features, np.random.default_rng(3)), features, examples)
    assert json.loads(json.dumps(predictions, allow_nan=False)) == predictions
    write_answers(tmp_path / "a.json", predictions)
    write_answers(tmp_path / "s.json", predictions, "null_difference")
    assert list(json.loads((tmp_path / "s.json").read_text())) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("name", ["stride", "max_question_tokens", "max_answer_tokens", "n_best"])
def test_the_task_refuses_numbers_below_1(name):
    with pytest.raises(ValueError, match=f"`{name}` must be at least 1. Received: 0"):
        QuestionAnswering(**{name: 0})


def test_the_task_refuses_another_metric():
    with pytest.raises(ValueError, match="Received: 'accuracy'"):
        QuestionAnswering(main_metric="accuracy")

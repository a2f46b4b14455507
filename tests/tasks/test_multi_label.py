import json

import numpy as np
import pytest

from keras_bert_flow.tasks.core.texts import TextExample
from keras_bert_flow.tasks.multi_label import MultiLabel
from tests.tasks.files import CLS, SEP, TOKENIZER, A, B, message_of, shuffled, write

TASK = MultiLabel(labels=("law", "sport", "war"))
EXAMPLES = [
    TextExample("a", "b", ("war", "law"), "t.tsv, row 2"),
    TextExample("b", "c", (), "t.tsv, row 3"),
    TextExample("c", "d", ("law",), "t.tsv, row 4"),
]
MARKS = [[1, 0, 1], [0, 0, 0], [1, 0, 0]]


def test_read_splits_a_column_at_the_separator(tmp_path):
    path = write(tmp_path, "t.csv", "text,label\r\na, war | law \r\nb,\r\nc,law|law\r\nd,  \r\n")
    assert [example.label for example in TASK.read(path)] == [("war", "law"), (), ("law",), ()]
    path = write(tmp_path, "t.tsv", "x\ta, b\ny\t\nz\tb")
    task = MultiLabel(text="0", label="1", separator=",", header=False)
    examples = task.read(path)
    assert examples[0] == TextExample("x", None, ("a", "b"), f"{path}, row 1")
    assert [example.label for example in examples] == [("a", "b"), (), ("b",)]


def test_read_takes_lists_of_jsonl(tmp_path):
    labels = [["war", "law"], [], "war|law", "", 3, [1, True, " x "]]
    path = write(tmp_path, "t.jsonl", "\n".join(json.dumps({"text": "a", "label": label}) for label in labels))
    spelt = [("war", "law"), (), ("war", "law"), (), ("3",), ("1", "true", "x")]
    assert [example.label for example in TASK.read(path)] == spelt


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.tsv", "text\tb\ta\nx\t1\t0\ny\t0\t0\nz\t 1 \t1\n"),
        ("t.csv", "a,text,b\nFalse,x,True\nfalse,y,0.0\n1.0,z,TRUE\n"),
        ("t.jsonl", '{"text":"x","a":0,"b":1}\n{"text":"y","a":false,"b":"0"}\n{"text":"z","b":true,"a":1.0}'),
    ],
)
def test_read_takes_a_column_for_each_label(tmp_path, name, content):
    task = MultiLabel(label_columns=("b", "a"))
    examples = task.read(write(tmp_path, name, content))
    assert [(example.text, example.label) for example in examples] == [("x", ("b",)), ("y", ()), ("z", ("b", "a"))]
    assert task.learn(examples).labels == ("b", "a")
    assert task.learn(examples[1:2]).labels == ("b", "a")


def test_prediction_needs_no_labels(tmp_path):
    path = write(tmp_path, "t.tsv", "text\na\n")
    for task in (TASK, MultiLabel(label_columns=("b", "a"))):
        (example,) = task.read(path, has_labels=False)
        assert example == TextExample("a", None, None, f"{path}, row 2")
        assert TASK.encode(TOKENIZER, [example], 8).labels == {}


def test_encode_marks_labels():
    features = TASK.encode(TOKENIZER, EXAMPLES, 8)
    assert features.token_ids[0].tolist() == [CLS, A, SEP, B, SEP]
    assert features.labels["logits"].dtype == np.float32
    assert features.labels["logits"].tolist() == MARKS
    empty = TASK.encode(TOKENIZER, EXAMPLES[1:2], 8)
    assert empty.labels["logits"].tolist() == [[0, 0, 0]]


def test_decode_gives_back_what_was_encoded():
    features = TASK.encode(TOKENIZER, EXAMPLES, 8)
    logits = features.labels["logits"] * 8 - 4
    predictions = TASK.decode({"logits": logits}, features, EXAMPLES)
    assert [set(prediction["labels"]) for prediction in predictions] == [set(example.label) for example in EXAMPLES]
    high, low = 1 / (1 + np.exp(-4)), 1 / (1 + np.exp(4))
    assert predictions[0]["probabilities"] == pytest.approx({"law": high, "sport": low, "war": high})
    assert json.loads(json.dumps(predictions)) == predictions
    moved, rows = shuffled(features, logits)
    assert TASK.decode({"logits": rows}, moved, EXAMPLES) == predictions
    expected = {"f1_micro": 1.0, "f1_macro": 1.0, "exact_match": 1.0, "f1/law": 1.0, "f1/sport": 0.0, "f1/war": 1.0}
    assert TASK.score(EXAMPLES, predictions) == expected


@pytest.mark.parametrize(
    ("threshold", "labels"), [(0.5, ["sport", "war"]), (0.51, ["war"]), (0.2, ["law", "sport", "war"])]
)
def test_decode_gives_labels_from_the_threshold_on(threshold, labels):
    task = MultiLabel(labels=TASK.labels, threshold=threshold)
    features = task.encode(TOKENIZER, EXAMPLES[:1], 8)
    (prediction,) = task.decode({"logits": [[-1.0, 0.0, 1.0]]}, features, EXAMPLES[:1])
    assert prediction["labels"] == labels
    assert prediction["probabilities"]["sport"] == 0.5


def test_score_of_a_hand_counted_case():
    predictions = [{"labels": ["law"]}, {"labels": ["sport"]}, {"labels": ["law"]}]
    # law: 2 of 2 and 2; sport: 0 of 0 and 1; war: 0 of 1 and 0; all together 2 of 3 and 3
    expected = {
        "f1_micro": 4 / 6,
        "f1_macro": 1 / 3,
        "exact_match": 1 / 3,
        "f1/law": 1.0,
        "f1/sport": 0.0,
        "f1/war": 0.0,
    }
    assert TASK.score(EXAMPLES, predictions) == pytest.approx(expected)


def test_guess_gives_the_commonest_labels():
    (guess,) = TASK.guess(EXAMPLES, EXAMPLES[:1])  # 3 labels of 3 examples: one each
    shares = {"law": pytest.approx(2 / 3), "sport": 0.0, "war": pytest.approx(1 / 3)}
    assert guess == {"labels": ["law"], "probabilities": shares}
    (two,) = TASK.guess(EXAMPLES[:1], EXAMPLES[:1])
    assert two["labels"] == ["law", "war"]
    (least,) = TASK.guess(EXAMPLES[1:2] * 9 + EXAMPLES[2:], EXAMPLES[:1])
    assert least["labels"] == ["law"]


def test_learn_sorts_labels_and_keeps_given_ones():
    assert MultiLabel().learn(EXAMPLES).labels == ("law", "war")
    assert MultiLabel().learn([TextExample("a", None, ("10", "9"))]).labels == ("9", "10")
    assert TASK.learn(EXAMPLES) == TASK
    message = message_of(ValueError, MultiLabel(labels=("law",)).learn, EXAMPLES)
    assert "t.tsv, row 2" in message and "'war'" in message


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: MultiLabel().learn([]), ["no examples"]),
        (lambda: MultiLabel().learn(EXAMPLES[1:2]), ["1 examples from t.tsv, row 3"]),
        (lambda: MultiLabel().encode(TOKENIZER, EXAMPLES, 8), ["`learn`"]),
        (lambda: TASK.encode(TOKENIZER, [TextExample("a", None, ("z",), "f, row 9")], 8), ["f, row 9", "'z'"]),
        (lambda: TASK.score(EXAMPLES, [{"labels": ["law"]}]), ["shapes (3, 3) and (1, 3)"]),
        (lambda: TASK.score(EXAMPLES[:1], [{"labels": ["z"]}]), ["prediction 1", "'z'"]),
        (lambda: TASK.decode({"logits": np.zeros((3, 2))}, TASK.encode(TOKENIZER, EXAMPLES, 8), EXAMPLES), ["(3, 2)"]),
        (lambda: MultiLabel(main_metric="f1"), ["'f1'", "f1_micro, f1_macro, exact_match"]),
        (lambda: MultiLabel(threshold=1.0), ["`threshold`", "1.0"]),
        (lambda: MultiLabel(separator=""), ["`separator`"]),
        (lambda: MultiLabel(labels=("a", "b"), label_columns=("b", "a")), ["`label_columns`", "a, b and b, a"]),
        (lambda: MultiLabel(labels=("a", "a")), ["`labels`", "a, a"]),
    ],
)
def test_multi_label_refuses(call, parts):
    message = message_of(ValueError, call)
    assert [part for part in parts if part not in message] == [], message


@pytest.mark.parametrize(
    ("name", "content", "task", "parts"),
    [
        ("t.tsv", "text\tlabel\na\tx\nb\tx||y\n", TASK, ["row 3", "'label'", "'|'", "x||y"]),
        ("t.tsv", "text\tlabel\na\t|\n", TASK, ["row 2", "'label'"]),
        ("t.tsv", "text\tlabel\n \tx\n", TASK, ["row 2", "'text'", "must hold text"]),
        ("t.csv", "text,label\na,x,y\n", TASK, ["row 2", "Received: 3, not 2"]),
        ("t.csv", 'text,label\r\na,"x\r\n', TASK, ["row 2", "RFC 4180"]),
        ("t.jsonl", '{"text": "a", "label": null}', TASK, ["row 1", "None"]),
        ("t.jsonl", '{"text": "a", "label": ["x", ["y"]]}', TASK, ["row 1", "['x', ['y']]"]),
        ("t.jsonl", '{"text": "a", "label": ["x", ""]}', TASK, ["row 1", "['x', '']"]),
        ("t.jsonl", '{"text": "a", "label": {"x": 1}}', TASK, ["row 1", "{'x': 1}"]),
        ("t.jsonl", '{"text": "a", "label": ["\\ud800"]}', TASK, ["row 1", "Unicode"]),
        (
            "t.tsv",
            "\ufefftext\tx\ty\r\na\t1\t0\r\nb\t1\t2\r\n",
            MultiLabel(label_columns=("x", "y")),
            ["row 3", "'y'", "'2'"],
        ),
        ("t.tsv", "text\tx\ty\na\t\t0\n", MultiLabel(label_columns=("x", "y")), ["row 2", "'x'", "0 or 1", "''"]),
        ("t.jsonl", '{"text": "a", "x": null}', MultiLabel(label_columns=("x",)), ["row 1", "'x'", "None"]),
        ("t.tsv", "text\tx\na\t1\n", MultiLabel(label_columns=("x", "y")), ["row 1", "'y'", "text, x"]),
        ("t.tsv", "text\tx\na\t1\n", MultiLabel(label_columns=("x", "x")), ["different columns"]),
    ],
)
def test_read_refuses_bad_tables(tmp_path, name, content, task, parts):
    path = write(tmp_path, name, content)
    message = message_of(ValueError, task.read, path)
    assert [part for part in parts if part not in message] == [], message

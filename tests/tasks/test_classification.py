import gzip
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from keras_bert_flow.tasks.classification import Classification
from keras_bert_flow.tasks.core.texts import TextExample
from keras_bert_flow.tasks.formats.tables import read_table
from tests.tasks.files import (
    CLS,
    DATA,
    SEP,
    TOKENIZER,
    A,
    B,
    C,
    E,
    F,
    message_of,
    needs_data,
    real_task,
    shuffled,
    write,
)

SST2 = Classification(text="0", label="1", header=False)
COLA = Classification(text="3", label="1", header=False, main_metric="matthews")
TASK = Classification(labels=("no", "perhaps", "yes"))
EXAMPLES = [
    TextExample("a", "b", "yes", "t.tsv, row 2"),
    TextExample("ef", "c", "no", "t.tsv, row 3"),
    TextExample("c", "a b", "yes", "t.tsv, row 4"),
]


def perfect_logits(labels: np.ndarray, classes: int) -> np.ndarray:
    return np.where(np.arange(classes) == labels[:, np.newaxis], 3.0, -2.0).astype(np.float32)


@needs_data
@pytest.mark.parametrize(
    ("task", "folder", "train", "dev", "majority"),
    [(SST2, "sst2", 6920, 872, "1"), (COLA, "cola", 8551, 1043, "1")],
)
def test_real_tables_go_the_whole_walk(task, folder, train, dev, majority):
    task, training, examples = real_task(task, folder)
    assert (len(training), len(examples)) == (train, dev)
    assert task.labels == ("0", "1")
    lines = (Path(DATA) / folder / "dev.tsv").read_text(encoding="utf-8").removesuffix("\n").split("\n")
    cells = [line.split("\t") for line in lines]
    assert [example.text for example in examples] == [row[int(task.text)] for row in cells]
    assert [example.label for example in examples] == [row[1] for row in cells]

    features = task.encode(TOKENIZER, examples, 64)
    assert features.labels["logits"].dtype == np.int32 and len(features) == dev
    predictions = task.decode({"logits": perfect_logits(features.labels["logits"], 2)}, features, examples)
    assert [prediction["label"] for prediction in predictions] == [row[1] for row in cells]
    perfect = dict.fromkeys(("accuracy", "f1", "f1_positive", "matthews"), 1.0)
    assert task.score(examples, predictions) == perfect

    guesses = task.guess(training, examples)
    assert {guess["label"] for guess in guesses} == {majority}
    share = Counter(row[1] for row in cells)[majority] / dev
    scores = task.score(examples, guesses)
    assert scores["accuracy"] == pytest.approx(share)
    assert (scores["matthews"], task.is_collapsed(examples, guesses)) == (0.0, True)


def test_examples_are_those_of_read_table(tmp_path):
    path = write(tmp_path, "t.tsv", '\ufeffq\tp\ty\r\n"a\tb"\t yes \r\n\r\nc\td "\tno\r\n')
    task = Classification(text="p", text_pair="q", label="y")
    table, examples = read_table(path, "p", "q", "y"), task.read(path)
    assert examples == [
        TextExample('b"', '"a', "yes", f"{path}, row 2"),
        TextExample('d "', "c", "no", f"{path}, row 4"),
    ]
    assert [example.text for example in examples] == list(table.texts)
    assert [example.label for example in examples] == list(table.labels)
    assert task.read(path, max_examples=1) == examples[:1]


@pytest.mark.parametrize(
    ("name", "content", "row"),
    [("t.csv", "text,more\na,1\n", 2), ("t.jsonl", '{"text": "a"}\n', 1), ("t.tsv.gz", "text\na\n", 2)],
)
def test_prediction_needs_no_label_column(tmp_path, name, content, row):
    path = write(tmp_path, name, gzip.compress(content.encode()) if name.endswith("gz") else content)
    examples = TASK.read(path, has_labels=False)
    assert examples == [TextExample("a", None, None, f"{path}, row {row}")]
    assert TASK.encode(TOKENIZER, examples, 8).labels == {}
    assert "'label'" in message_of(ValueError, TASK.read, path)


def test_encode_joins_texts_and_numbers_labels():
    features = TASK.encode(TOKENIZER, EXAMPLES, 6)
    assert [sequence.tolist() for sequence in features.token_ids] == [
        [CLS, A, SEP, B, SEP],
        [CLS, E, F, SEP, C, SEP],
        [CLS, C, SEP, A, B, SEP],
    ]
    assert features.first_lengths.tolist() == [3, 4, 3]
    assert features.examples.tolist() == [0, 1, 2]
    assert features.labels["logits"].tolist() == [2, 0, 2]
    assert features.labels["logits"].dtype == np.int32
    short = TASK.encode(TOKENIZER, EXAMPLES, 5)
    assert [sequence.tolist() for sequence in short.token_ids[1:]] == [[CLS, E, SEP, C, SEP], [CLS, C, SEP, A, SEP]]
    alone = TASK.encode(TOKENIZER, [TextExample("a b c")], 4)
    assert [sequence.tolist() for sequence in alone.token_ids] == [[CLS, A, B, SEP]]
    assert alone.first_lengths.tolist() == [4]


def test_decode_gives_the_softmax_by_name():
    features = TASK.encode(TOKENIZER, EXAMPLES, 8)
    logits = np.log(np.array([[1, 2, 7], [5, 4, 1], [1, 1, 8]], np.float32))
    predictions = TASK.decode({"logits": logits}, features, EXAMPLES)
    assert [prediction["label"] for prediction in predictions] == ["yes", "no", "yes"]
    assert predictions[0]["probability"] == pytest.approx(0.7, abs=1e-6)
    assert predictions[1]["probabilities"] == pytest.approx({"no": 0.5, "perhaps": 0.4, "yes": 0.1}, abs=1e-6)
    moved, rows = shuffled(features, logits)
    assert moved.examples.tolist() != [0, 1, 2]
    assert TASK.decode({"logits": rows}, moved, EXAMPLES) == predictions


def test_decode_takes_logits_that_would_overflow():
    features = TASK.encode(TOKENIZER, EXAMPLES[:1], 8)
    (prediction,) = TASK.decode({"logits": [[-1e30, 3e38, 0]]}, features, EXAMPLES[:1])
    assert prediction["probabilities"] == {"no": 0.0, "perhaps": 1.0, "yes": 0.0}


@pytest.mark.parametrize(
    ("logits", "part"),
    [([[1.0, 2.0]] * 3, "(3, 2) for 3 rows"), ([[1.0, 2.0, 3.0]] * 2, "(2, 3)"), ([[1.0, np.nan, 3.0]] * 3, "nan")],
)
def test_decode_refuses_other_outputs(logits, part):
    features = TASK.encode(TOKENIZER, EXAMPLES, 8)
    assert part in message_of(ValueError, TASK.decode, {"logits": np.array(logits)}, features, EXAMPLES)


def test_guess_is_the_majority_of_training_with_its_shares():
    (guess,) = TASK.guess(EXAMPLES, EXAMPLES[:1])
    shares = {"no": pytest.approx(1 / 3), "perhaps": 0.0, "yes": pytest.approx(2 / 3)}
    assert guess == {"label": "yes", "probability": pytest.approx(2 / 3), "probabilities": shares}
    (tie,) = TASK.guess(EXAMPLES[:2], EXAMPLES[:1])
    assert tie["label"] == "no"


def test_learn_sorts_labels_and_keeps_given_ones():
    learnt = Classification().learn(EXAMPLES)
    assert learnt.labels == ("no", "yes")
    given = Classification(labels=("yes", "no"))
    assert given.learn(EXAMPLES) == given
    message = message_of(ValueError, Classification(labels=("yes", "maybe")).learn, EXAMPLES)
    assert "t.tsv, row 3" in message and "'no'" in message and "yes, maybe" in message


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: Classification().learn([]), ["no examples"]),
        (lambda: Classification().learn(EXAMPLES[::2]), ["2 examples from t.tsv, row 2", "'yes'"]),
        (lambda: Classification().learn([TextExample("a")]), ["without a label"]),
        (lambda: Classification().encode(TOKENIZER, EXAMPLES, 8), ["none", "`learn`"]),
        (lambda: Classification(main_metric="f1_positive").learn([*EXAMPLES, TextExample("a", None, "z")]), ["metric"]),
        (lambda: TASK.encode(TOKENIZER, [*EXAMPLES, TextExample("a", "b")], 8), ["Either", "an example without"]),
        (lambda: TASK.encode(TOKENIZER, [TextExample("a", "b", "z", "f, row 9")], 8), ["f, row 9", "'z'", "no, per"]),
        (lambda: TASK.score(EXAMPLES, [{"label": "yes"}]), ["shapes (3,) and (1,)"]),
        (lambda: TASK.score(EXAMPLES[:1], [{"label": "x"}]), ["prediction 1", "'x'"]),
        (lambda: TASK.score([TextExample("a")], [{"label": "yes"}]), ["without a label"]),
        (lambda: Classification(main_metric="loss"), ["`main_metric`", "'loss'", "accuracy, f1"]),
        (lambda: Classification(labels=("a", "a")), ["`labels`", "a, a"]),
        (lambda: Classification(labels=("a",)), ["`labels`", "2 or more"]),
    ],
)
def test_classification_refuses(call, parts):
    message = message_of(ValueError, call)
    assert [part for part in parts if part not in message] == [], message


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("t.tsv", "text\tlabel\na\t1\nb\n", ["row 3", "Received: 1, not 2"]),
        ("t.tsv", "text\tlabel\na\t1\tx\n", ["row 2", "Received: 3, not 2"]),
        ("t.csv", "text,gold\na,1\n", ["row 1", "'label'", "text, gold"]),
        ("t.csv", 'text,label\n"a,1\n', ["row 2", "RFC 4180"]),
        ("t.csv", '\ufefftext,label\r\na,1\r\n" ",2\r\n', ["row 3", "'text'", "must hold text"]),
        ("t.jsonl", '{"text": "a", "label": 1}\r\n{"text": "b", "label": [1]}', ["row 2", "'label'", "[1]"]),
        ("t.tsv", "text\tlabel\na\t\n", ["row 2", "'label'", "must hold text"]),
    ],
)
def test_read_refuses_bad_tables(tmp_path, name, content, parts):
    path = write(tmp_path, name, content)
    message = message_of(ValueError, Classification().read, path)
    assert [part for part in [str(path), *parts] if part not in message] == [], message

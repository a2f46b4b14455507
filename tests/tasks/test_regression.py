import json
from pathlib import Path

import numpy as np
import pytest

from keras_bert_flow.tasks.classification import Regression
from keras_bert_flow.tasks.core.texts import TextExample
from tests.tasks.files import CLS, DATA, SEP, TOKENIZER, A, B, message_of, needs_data, real_task, shuffled, write

STSB = Regression(text="sentence1", text_pair="sentence2", label="score", lowest=0.0, highest=5.0)
EXAMPLES = [
    TextExample(text, None, score, f"t.tsv, row {score}") for text, score in (("a b", 2.0), ("c", 4.5), ("d", -1.0))
]


@needs_data
def test_stsb_goes_the_whole_walk():
    task, training, examples = real_task(STSB, "stsb")
    assert task == STSB
    assert (len(training), len(examples)) == (5749, 1500)
    lines = (Path(DATA) / "stsb/dev.tsv").read_text(encoding="utf-8").splitlines()[1:]
    cells = [line.split("\t") for line in lines]
    assert [(e.text, e.text_pair, e.label) for e in examples] == [(row[7], row[8], float(row[9])) for row in cells]
    assert any('"' in example.text for example in training)

    features = task.encode(TOKENIZER, examples, 64)
    assert features.labels["logits"].dtype == np.float32
    for shape in ((-1,), (-1, 1)):
        predictions = task.decode({"logits": features.labels["logits"].reshape(shape)}, features, examples)
        scores = [prediction["score"] for prediction in predictions]
        assert scores == pytest.approx([float(row[9]) for row in cells], abs=1e-6)  # float32 of up to 5
    metrics = task.score(examples, predictions)
    assert metrics == pytest.approx({"pearson": 1.0, "spearman": 1.0, "mse": 0.0}, abs=1e-12)

    guesses = task.guess(training, examples)
    mean = sum(example.label for example in training) / len(training)
    assert [guess["score"] for guess in guesses] == pytest.approx([mean] * 1500)
    scores = task.score(examples, guesses)
    assert (scores["pearson"], scores["spearman"]) == (0.0, 0.0)
    assert 2.2 < scores["mse"] < 2.4  # the spread of the dev scores


def test_encode_keeps_scores_as_they_are():
    features = Regression().encode(TOKENIZER, EXAMPLES, 8)
    assert features.token_ids[0].tolist() == [CLS, A, B, SEP]
    assert features.labels["logits"].tolist() == [2.0, 4.5, -1.0]
    assert features.labels["logits"].shape == (3,)
    assert Regression().encode(TOKENIZER, [TextExample("a")], 8).labels == {}


def test_decode_cuts_scores_to_their_range():
    features = Regression().encode(TOKENIZER, EXAMPLES, 8)
    outputs = np.array([[-7.5], [2.5], [9.0]], np.float32)
    for task, scores in (
        (Regression(), [-7.5, 2.5, 9.0]),
        (Regression(lowest=0.0), [0.0, 2.5, 9.0]),
        (Regression(lowest=0.0, highest=5.0), [0.0, 2.5, 5.0]),
    ):
        predictions = task.decode({"logits": outputs}, features, EXAMPLES)
        assert predictions == [{"score": score} for score in scores]
        assert json.loads(json.dumps(predictions)) == predictions
        moved, rows = shuffled(features, outputs)
        assert task.decode({"logits": rows}, moved, EXAMPLES) == predictions


@pytest.mark.parametrize("shape", [(2,), (3, 2), (1, 3), (3, 1, 1)])
def test_decode_refuses_other_shapes(shape):
    features = Regression().encode(TOKENIZER, EXAMPLES, 8)
    assert str(shape) in message_of(ValueError, Regression().decode, {"logits": np.zeros(shape)}, features, EXAMPLES)


def test_decode_refuses_what_is_not_finite():
    features = Regression().encode(TOKENIZER, EXAMPLES, 8)
    message = message_of(ValueError, Regression().decode, {"logits": [1.0, np.inf, 2.0]}, features, EXAMPLES)
    assert "diverged" in message


@pytest.mark.parametrize(
    ("spelt", "score"), [("1", 1.0), (" -2.50 ", -2.5), ("+.5", 0.5), ("3.", 3.0), ("1e-3", 0.001), ("2E+1", 20.0)]
)
def test_read_takes_numbers(tmp_path, spelt, score):
    path = write(tmp_path, "t.tsv", f"text\tlabel\na\t{spelt}\n")
    assert Regression().read(path) == [TextExample("a", None, score, f"{path}, row 2")]


@pytest.mark.parametrize(
    "spelt", ["good", "nan", "inf", "-Infinity", "1e999", "3.5e38", "3,5", "1_000", "0x1", "1 2", "٣", "--1", "e5", "."]
)
def test_read_refuses_what_is_no_finite_number(tmp_path, spelt):
    path = write(tmp_path, "t.tsv", f"text\tlabel\na\t1\nb\t{spelt}\n")
    message = message_of(ValueError, Regression().read, path)
    assert f"{path}, row 3" in message and repr(spelt) in message and "finite number" in message


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("t.jsonl", '{"text": "a", "label": 1.5}\n{"text": "b", "label": NaN}', ["row 2", "nan", "Fill it"]),
        ("t.jsonl", '{"text": "a", "label": true}', ["row 1", "'true'", "finite"]),
        ("t.jsonl", '{"text": "a", "label": null}', ["row 1", "None", "must hold text"]),
        ("t.tsv", "text\tlabel\na\t \n", ["row 2", "'label'", "must hold text"]),
        ("t.csv", 'text,label\r\na,"1\r\n', ["row 2", "RFC 4180"]),
        ("t.csv", "text,label\r\na,3,5\r\n", ["row 2", "Received: 3, not 2"]),
        ("t.tsv", "\ufefftext\tlabel\r\na\t5\r\nb\t5.01\r\n", ["row 3", "from 0.0 to 5.0", "5.01"]),
        ("t.tsv", "text\tlabel\na\t-1\n", ["row 2", "from 0.0 to 5.0", "-1"]),
        ("t.tsv", "text\tscore\na\t1\n", ["row 1", "'label'", "text, score"]),
    ],
)
def test_read_refuses_bad_tables(tmp_path, name, content, parts):
    path = write(tmp_path, name, content)
    message = message_of(ValueError, Regression(lowest=0.0, highest=5.0).read, path)
    assert [part for part in [str(path), *parts] if part not in message] == [], message


def test_prediction_needs_no_score(tmp_path):
    path = write(tmp_path, "t.csv", "text\na\n")
    assert Regression().read(path, has_labels=False) == [TextExample("a", None, None, f"{path}, row 2")]


@pytest.mark.parametrize(
    ("call", "parts"),
    [
        (lambda: Regression().learn([]), ["no examples"]),
        (lambda: Regression().learn(EXAMPLES[:1] * 3), ["3 examples from t.tsv, row 2.0", "all are 2.0"]),
        (lambda: Regression().score([TextExample("a")], [{"score": 1.0}]), ["an example without a label"]),
        (lambda: Regression().score(EXAMPLES, [{"score": 1.0}]), ["shapes (3,) and (1,)"]),
        (lambda: Regression().score(EXAMPLES, [{"score": np.nan}] * 3), ["finite"]),
        (lambda: Regression(main_metric="mse"), ["'mse'", "pearson, spearman"]),
        (lambda: Regression(labels=("a",)), ["no labels", "a"]),
        (lambda: Regression(lowest=1.0, highest=1.0), ["`lowest`", "1.0 and 1.0"]),
        (lambda: Regression(lowest=np.nan), ["`lowest`", "nan"]),
    ],
)
def test_regression_refuses(call, parts):
    message = message_of(ValueError, call)
    assert [part for part in parts if part not in message] == [], message


def test_prediction_beyond_a_float_is_refused_by_file(tmp_path):
    (tmp_path / "t.tsv").write_text("text\tlabel\na\t1\nb\t2\n")
    task = Regression()
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps({"index": n, "score": 10**400 + n}) + "\n" for n in range(2)))
    with pytest.raises(ValueError, match="p.jsonl: a prediction is not one of regression"):
        task.score_file(path, task.read(tmp_path / "t.tsv"))

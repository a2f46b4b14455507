"""Files of predictions are scored as scikit-learn, seqeval and SQuAD's own rules do, without Keras."""

import json
import subprocess
import sys

import pytest
from sklearn.metrics import accuracy_score, f1_score

from keras_bert_flow.config.loading import make_config
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.evaluation.prediction_files import score_predictions
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.any_backend


def configure(folder, dev, **task):
    return make_config(
        PipelineConfig, {"task": {"name": "t", "train": str(folder / "none"), "dev": str(dev)} | task}, "t"
    )


def test_glue_table_is_scored_as_by_scikit_learn(tmp_path):
    gold, predicted = list("aabbcabc"), list("abbbcacc")
    (tmp_path / "dev.tsv").write_text("text\tlabel\n" + "".join(f"word\t{label}\n" for label in gold))
    (tmp_path / "p.tsv").write_text("index\tprediction\n" + "".join(f"{n}\t{p}\n" for n, p in enumerate(predicted)))
    (tmp_path / "p.jsonl").write_text("".join(json.dumps({"label": label}) + "\n" for label in predicted))
    config = configure(tmp_path, tmp_path / "dev.tsv")
    scores = score_predictions(config, tmp_path / "p.tsv")
    assert scores == score_predictions(config, tmp_path / "p.jsonl")
    assert scores["accuracy"] == pytest.approx(accuracy_score(gold, predicted))
    assert scores["f1"] == pytest.approx(f1_score(gold, predicted, average="macro"))


def test_columns_are_scored_as_by_seqeval(tmp_path):
    seqeval = pytest.importorskip("seqeval.metrics")
    gold = [["B-PER", "I-PER", "O"], ["B-LOC", "O"]]
    predicted = [["B-PER", "O", "O"], ["B-LOC", "O"]]
    for name, rows in (("dev.conll", gold), ("p.conll", predicted)):
        text = "\n\n".join("\n".join(f"w{n} {tag}" for n, tag in enumerate(tags)) for tags in rows)
        (tmp_path / name).write_text(text + "\n")
    three = "\n\n".join(
        "\n".join(f"w{n} {g} {p}" for n, (g, p) in enumerate(zip(*pair, strict=True)))
        for pair in zip(gold, predicted, strict=True)
    )
    (tmp_path / "three.conll").write_text(three + "\n")
    config = configure(tmp_path, tmp_path / "dev.conll", kind="token_classification")
    scores = score_predictions(config, tmp_path / "p.conll")
    assert scores["f1"] == pytest.approx(seqeval.f1_score(gold, predicted))
    assert scores == score_predictions(config, tmp_path / "three.conll")


@pytest.mark.parametrize("is_impossible", [False, True])
def test_squad_files_are_scored_by_its_rules(tmp_path, is_impossible):
    answer = {"text": "the old cat", "answer_start": 4}
    questions = [
        {"id": "1", "question": "Who?", "answers": [answer]},
        {
            "id": "2",
            "question": "Who not?",
            "answers": [] if is_impossible else [answer],
            "is_impossible": is_impossible,
        },
    ]
    paragraph = {"context": "See the old cat.", "qas": questions}
    (tmp_path / "dev.json").write_text(json.dumps({"data": [{"title": "", "paragraphs": [paragraph]}]}))
    (tmp_path / "p.json").write_text(json.dumps({"1": "old dog", "2": "" if is_impossible else "Old cat!"}))
    config = configure(tmp_path, tmp_path / "dev.json", kind="question_answering")
    scores = score_predictions(config, tmp_path / "p.json")
    # Articles, case and punctuation do not count: one of two words of question 1, all of question 2.
    assert scores["exact"] == 0.5
    assert scores["f1"] == pytest.approx((0.5 + 1) / 2)
    assert ("no_answer_f1" in scores) == is_impossible


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.tsv", "index\tprediction\n0\ta\n", "Received: 1 for 2"),
        ("p.tsv", "index\tprediction\n1\ta\n0\tb\n", "`index` must count the rows from 0"),
        ("p.jsonl", '{"answer": "a"}\n{"answer": "a"}\n', "lacks 'label' for classification"),
        ("p.tsv", "index\tprediction\n0\ta\n1\tz\n", "z"),
    ],
)
def test_other_predictions_are_refused_in_a_line(tmp_path, name, content, message):
    (tmp_path / "dev.tsv").write_text("text\tlabel\nw\ta\nw\tb\n")
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        score_predictions(configure(tmp_path, tmp_path / "dev.tsv"), tmp_path / name)
    assert "\n" not in str(caught.value)


def test_command_scores_without_keras(tmp_path):
    (tmp_path / "dev.tsv").write_text("text\tlabel\nw\ta\nw\tb\n")
    (tmp_path / "p.tsv").write_text("index\tprediction\n0\ta\n1\ta\n")
    (tmp_path / "t.yaml").write_text(f"task: {{name: t, train: {tmp_path}/none, dev: {tmp_path}/dev.tsv}}\n")
    arguments = ["kbf", "evaluate", "--task", f"{tmp_path}/t.yaml", "--predictions", f"{tmp_path}/p.tsv"]
    code = (
        f"import sys; sys.argv = {arguments!r}; from keras_bert_flow.cli import main\n"
        "try: main()\nfinally: assert not {'keras', 'torch', 'jax', 'tensorflow'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.stdout.splitlines()[0] == "accuracy: 0.5000", done.stderr

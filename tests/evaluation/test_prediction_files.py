"""Files of predictions are scored as scikit-learn, seqeval and SQuAD's own rules do, without Keras."""

import json
import subprocess
import sys

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from keras_bert_flow.config.loading import make_config
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.evaluation.questions import score_predictions, write_predictions
from tests.patience import PATIENCE_SECONDS
from tests.tasks.kinds import CASES, make_case

pytestmark = pytest.mark.any_backend


def configure(folder, dev, **task):
    return make_config(
        PipelineConfig, {"task": {"name": "t", "train": str(folder / "none"), "dev": str(dev)} | task}, "t"
    )


def test_glue_table_is_scored_as_by_scikit_learn(tmp_path):
    gold, predicted = list("aabbcabc"), list("abbbcacc")
    (tmp_path / "dev.tsv").write_text("text\tlabel\n" + "".join(f"w{n}\t{g}\n" for n, g in enumerate(gold)))
    (tmp_path / "p.tsv").write_text("index\tprediction\n" + "".join(f"{n}\t{p}\n" for n, p in enumerate(predicted)))
    (tmp_path / "p.jsonl").write_text(
        "".join(json.dumps({"label": p, "index": n}) + "\n" for n, p in enumerate(predicted))
    )
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
    answers = json.dumps({"1": "old dog", "2": "" if is_impossible else "Old cat!"})
    (tmp_path / "p.json").write_text(f"\ufeff{answers}")
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
        ("p.jsonl", '{"index": 1, "answer": "a"}\n{"index": 0, "answer": "a"}\n', "lacks 'label' for classification"),
        ("p.jsonl", '{"label": "a"}\n{"label": "b"}\n', "must have the texts that they are of .text. or their `index`"),
        ("p.jsonl", '{"index": 1, "label": "a"}\n{"index": 1, "label": "b"}\n', "must number the examples from 0 to 1"),
        ("p.jsonl", '{"index": 0, "label": "a"}\n', "Received: 1 for 2"),
        ("p.jsonl", '{"text": "w", "label": "a"}\n{"text": "v", "label": "b"}\n', "Received: none for w"),
        ("p.jsonl", '{"text": "w", "label": "a"}\n' * 3, "Received: 1 that are not, as of w"),
        ("p.tsv", "index\tprediction\n0\ta\n1\tz\n", "z"),
        ("p.jsonl", '{"index": 0, "label": "a"}\n{"index": 1, "label": "z"}\n', "p.jsonl: .*Received: 'z'"),
    ],
)
def test_other_predictions_are_refused_in_a_line(tmp_path, name, content, message):
    (tmp_path / "dev.tsv").write_text("text\tlabel\nw\ta\nw\tb\n")
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message) as caught:
        score_predictions(configure(tmp_path, tmp_path / "dev.tsv"), tmp_path / name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "golds"), [("classification", [0, 1, True, 2.5]), ("multi_label", [[0], [1, 0], [], [True, 2.5]])]
)
def test_labels_that_are_numbers_are_spelt_as_in_tables(tmp_path, kind, golds):
    """The lines of a table are perfect predictions of it."""
    name = {"classification": "label", "multi_label": "labels"}[kind]
    lines = [json.dumps({"text": f"w{number}", name: gold}) for number, gold in enumerate(golds)]
    (tmp_path / "dev.jsonl").write_text("\n".join(lines))
    config = configure(tmp_path, tmp_path / "dev.jsonl", kind=kind, label=name)
    scores = score_predictions(config, tmp_path / "dev.jsonl")
    assert set(scores.values()) == {1.0}


@pytest.mark.parametrize("name", CASES)
def test_lines_are_matched_to_their_examples_in_any_order(tmp_path, name):
    """What `kbf predict --input` writes scores the same when it is shuffled; with a line less or more it is refused."""
    case = make_case(name, 30)
    predictions = case.answer(skill=1.0)
    write_predictions(tmp_path, "p", case.task, case.dev, predictions)
    lines = (tmp_path / "p.jsonl").read_text().splitlines(keepends=True)
    path, expected = tmp_path / "p.jsonl", case.task.score(case.dev, predictions)
    rng = np.random.default_rng(1)
    path.write_text("".join(lines[place] for place in rng.permutation(30)))
    assert case.task.score_file(path, case.dev) == pytest.approx(expected)
    for changed, words in ((lines[:-1], "none for"), ([*lines, lines[0]], "Received: ")):
        path.write_text("".join(changed))
        with pytest.raises(ValueError, match=words) as caught:
            case.task.score_file(path, case.dev)
        assert "\n" not in str(caught.value)


def test_answers_to_blank_lines_are_no_examples(tmp_path):
    (tmp_path / "dev.tsv").write_text("text\tlabel\nw\ta\n\nv\tb\n")
    lines = ['{"text": "v", "label": "b"}', '{"text": "", "label": "b"}', '{"text": "w", "label": "a"}']
    (tmp_path / "p.jsonl").write_text("\n".join(lines))
    assert score_predictions(configure(tmp_path, tmp_path / "dev.tsv"), tmp_path / "p.jsonl")["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("answers", "words"),
    [
        ({"1": "old cat"}, "none for 2"),
        ({"1": "old cat", "2": "cat", "3": "dog", "4": "x"}, "answers to questions that are not in the file: 3, 4"),
    ],
)
@pytest.mark.parametrize("ending", ["json", "jsonl"])
def test_answers_to_other_questions_are_refused(tmp_path, answers, words, ending):
    answer = {"text": "the old cat", "answer_start": 4}
    questions = [{"id": name, "question": "Who?", "answers": [answer]} for name in "12"]
    paragraph = {"context": "See the old cat.", "qas": questions}
    (tmp_path / "dev.json").write_text(json.dumps({"data": [{"title": "", "paragraphs": [paragraph]}]}))
    lines = [json.dumps({"id": name, "answer": text}) for name, text in answers.items()]
    (tmp_path / f"p.{ending}").write_text(json.dumps(answers) if ending == "json" else "\n".join(lines))
    with pytest.raises(ValueError, match=words):
        score_predictions(
            configure(tmp_path, tmp_path / "dev.json", kind="question_answering"), tmp_path / f"p.{ending}"
        )


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

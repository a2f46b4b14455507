"""Files of predictions on real data are scored as the official scripts score them."""

import json
import os
import random
from pathlib import Path

import pytest
from sklearn.metrics import accuracy_score

from keras_bert_flow.config.loading import make_config
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.evaluation.questions import score_predictions
from keras_bert_flow.tasks.formats.conll import read_tagged_words, write_conll
from keras_bert_flow.tasks.formats.squad import gold_answers, read_questions
from keras_bert_flow.tasks.formats.tables import write_glue_table
from tests.oracles.conlleval import conlleval
from tests.oracles.squad_scores import official_1

DATA = os.environ.get("KBF_TEST_DATA")
pytestmark = [pytest.mark.any_backend, pytest.mark.skipif(not DATA, reason="KBF_TEST_DATA is not set")]


def configure(train, dev, **task):
    return make_config(PipelineConfig, {"task": {"name": "t", "train": str(train), "dev": str(dev)} | task}, "t")


@pytest.mark.slow
def test_answers_to_squad_score_as_the_official_script_says(tmp_path):
    dev, rng = Path(DATA, "squad/dev-v1.1.json"), random.Random(1)
    questions = read_questions(dev)
    answers = {}
    for question in questions:
        words = question.context.split()
        start = rng.randrange(len(words))
        guess = " ".join(words[start : start + rng.randint(1, 4)])
        answers[question.id] = rng.choice(
            [guess, rng.choice(question.answers).text, f"The {question.answers[0].text}!"]
        )
    (tmp_path / "p.json").write_text(json.dumps(answers))
    config = configure(tmp_path / "none", dev, kind="question_answering")
    scores, expected = score_predictions(config, tmp_path / "p.json"), official_1(gold_answers(questions), answers)
    assert {name: 100 * scores[name] for name in ("exact", "f1")} == pytest.approx(expected)
    assert 0.5 < scores["exact"] < scores["f1"] < 0.8


def test_columns_of_real_tags_keep_the_gold_and_score_as_conlleval_says(tmp_path):
    dev, rng = Path(DATA, "conll2002_ned/testa.txt"), random.Random(2)
    examples = read_tagged_words(dev)
    known = sorted({tag for example in examples for tag in example.tags})
    predicted = [[tag if rng.random() < 0.9 else rng.choice(known) for tag in example.tags] for example in examples]
    write_conll(tmp_path / "p.conll", examples, predicted)
    assert [each.tags for each in read_tagged_words(tmp_path / "p.conll", tag_column=1)] == [
        each.tags for each in examples
    ]
    config = configure(tmp_path / "none", dev, kind="token_classification")
    scores = score_predictions(config, tmp_path / "p.conll")
    chunks, (right, words) = conlleval([each.tags for each in examples], predicted)
    gold, found, correct = (sum(counts[place] for counts in chunks.values()) for place in range(3))
    assert scores["precision"] == pytest.approx(correct / found) and scores["recall"] == pytest.approx(correct / gold)
    assert scores["f1"] == pytest.approx(2 * correct / (gold + found))
    assert scores["accuracy"] == pytest.approx(right / words)


def test_table_for_the_server_of_glue_is_scored(tmp_path):
    dev, rng = Path(DATA, "sst2/test.tsv"), random.Random(3)
    gold = [line.split("\t")[1] for line in dev.read_text(encoding="utf-8").splitlines()]
    predicted = [rng.choice("011") for _ in gold]
    write_glue_table(tmp_path / "SST-2.tsv", predicted)
    config = configure(Path(DATA, "sst2/train.tsv"), dev, text="0", label="1", header=False)
    scores = score_predictions(config, tmp_path / "SST-2.tsv")
    assert scores["accuracy"] == pytest.approx(accuracy_score(gold, predicted))


def test_label_that_only_training_has_may_be_predicted(tmp_path):
    (tmp_path / "train.tsv").write_text("text\tlabel\nw\ta\nw\tb\nw\tc\n")
    (tmp_path / "dev.tsv").write_text("text\tlabel\nw\ta\nw\tb\n")
    write_glue_table(tmp_path / "p.tsv", ["a", "c"])
    scores = score_predictions(configure(tmp_path / "train.tsv", tmp_path / "dev.tsv"), tmp_path / "p.tsv")
    assert scores["accuracy"] == 0.5
    with pytest.raises(ValueError, match="'c'") as caught:
        score_predictions(configure(tmp_path / "none", tmp_path / "dev.tsv"), tmp_path / "p.tsv")
    assert "\n" not in str(caught.value)


def test_tag_that_only_training_has_may_be_predicted(tmp_path):
    (tmp_path / "train.conll").write_text("Jan B-PER\nin O\nGent B-LOC\n")
    (tmp_path / "dev.conll").write_text("Jan B-PER\nin O\n")
    (tmp_path / "p.conll").write_text("Jan B-PER B-PER\nin O B-LOC\n")
    for train in ("train.conll", "none"):
        config = configure(tmp_path / train, tmp_path / "dev.conll", kind="token_classification")
        scores = score_predictions(config, tmp_path / "p.conll")
        assert (scores["precision"], scores["recall"]) == (0.5, 1.0)

import pytest

from keras_bert_flow.evaluation.page import page
from keras_bert_flow.evaluation.report import describe_data, make_data_card
from keras_bert_flow.tasks.core.texts import TextExample
from keras_bert_flow.tasks.registry import make_task
from tests.evaluation.test_report import Page
from tests.oracles.tiny_records import write_tiny_records
from tests.tasks.kinds import MAIN_METRICS, make_case

KINDS = sorted({kind for kind, _ in MAIN_METRICS})


def test_card_counts_labels_and_shows_an_example_of_each(tmp_path):
    texts = [("a", "red"), ("b", "red"), ("c", "blue")]
    examples = [TextExample(text, label=label) for text, label in texts]
    task = make_task(kind="classification").learn(examples)
    records = write_tiny_records(tmp_path / "records")
    card = make_data_card(task, {"training": examples, "dev": examples[:1]}, records)
    assert card["tables"]["training"] == {"examples": 3, "labels": {"blue": 1, "red": 2}}
    assert card["tables"]["dev"] == {"examples": 1, "labels": {"blue": 0, "red": 1}}
    assert [shown["text"] for shown in card["examples"]] == ["a", "b", "c"]
    assert "record 0 of train-" in card["records"] and "[MASK: " in card["records"]
    said = "\n".join(describe_data(card, {"documents": 12}))
    assert "blue" in said and "pre-training records" in said and "[MASK: " in said


def test_card_shows_the_shares_of_classes_in_every_table():
    tables = {
        "training": {"examples": 4, "labels": {"a": 1, "b": 3}},
        "dev": {"examples": 8, "labels": {"a": 8, "b": 0}},
    }
    _, shares = Page(page("t", describe_data({"tables": tables}, {}))).tables
    assert shares == [
        ["label", "training", "share", "dev", "share"],
        ["a", "1", "25.0 %", "8", "100.0 %"],
        ["b", "3", "75.0 %", "0", "0.0 %"],
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_task_shows_examples(kind, tmp_path):
    case = make_case(kind, seed=1)
    card = make_data_card(case.task, {"dev": case.dev}, tmp_path / "gone")
    assert card["records"] == "" and 1 <= len(card["examples"]) <= 4
    for shown in card["examples"]:
        assert shown["text"] and "gold" in shown
    assert "training example" in "\n".join(describe_data(card, {}))

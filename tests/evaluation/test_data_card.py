import pytest

from keras_bert_flow.evaluation.data_card import describe_data, make_data_card
from keras_bert_flow.tasks.core.texts import TextExample
from keras_bert_flow.tasks.registry import make_task
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


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_task_shows_examples(kind, tmp_path):
    case = make_case(kind, seed=1)
    card = make_data_card(case.task, {"dev": case.dev}, tmp_path / "gone")
    assert card["records"] == "" and 1 <= len(card["examples"]) <= 4
    for shown in card["examples"]:
        assert shown["text"] and "gold" in shown
    assert "training example" in "\n".join(describe_data(card, {}))

"""A task that was written beside a model is the same when it is read; items become examples of it."""

import json

import pytest

from keras_bert_flow.tasks.registry import make_task, read_task

TASKS = [
    make_task("classification", labels=("no", "yes"), text_pair="b", text="a"),
    make_task("regression", lowest=0.0, highest=5.0),
    make_task("multi_label", labels=("x", "y"), threshold=0.3),
    make_task("multiple_choice"),
    make_task("token_classification", scheme="IOB2", labels=("O", "B-PER", "I-PER"), stride=7),
    make_task("question_answering", null_threshold=-0.5),
    make_task("sentence_embedding", objective="cosine", highest=5.0, normalize=False, main_metric="pearson"),
]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.kind)
def test_stored_task_is_the_same(tmp_path, task):
    task.save(tmp_path, 96)
    assert read_task(tmp_path) == (task, 96)


def test_folder_without_a_task_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"must hold task\.json .* Received: "):
        read_task(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"kind": "classification"}', '{"kind": "odd", "sequence_length": 8}'])
def test_damaged_task_is_one_line(tmp_path, content):
    (tmp_path / "task.json").write_text(content)
    with pytest.raises(ValueError, match=r"task\.json: .*Received: ") as caught:
        read_task(tmp_path)
    assert "\n" not in str(caught.value)


def test_items_become_examples():
    pair, number, _, choice, tags, answer, vector = TASKS
    for item in (["one", "two"], {"text": "one", "text_pair": "two"}):
        example = pair.make_example(item)
        assert (example.text, example.text_pair, example.label) == ("one", "two", None)
    assert number.make_example("one").text == "one"
    chosen = choice.make_example({"context": "c", "question": "q", "choices": ["a", "b"]})
    assert (chosen.context, chosen.question, chosen.choices, chosen.label) == ("c", "q", ("a", "b"), None)
    assert tags.make_example("Jan woont.").words == ("Jan", "woont", ".")
    assert tags.make_example(["Jan", "woont."]).words == ("Jan", "woont.")
    for item in (["q", "c"], {"question": "q", "context": "c"}):
        assert (answer.make_example(item).question, answer.make_example(item).context) == ("q", "c")
    for item in ("one", {"text": "one"}, ["one", "two"], {"text": "one", "text_pair": "two"}):
        example = vector.make_example(item)
        assert (example.text, example.text_pair) == ("one", "two" if len(item) == 2 else None)


@pytest.mark.parametrize(
    ("place", "item"),
    [(0, "one"), (0, {"text": "one"}), (1, ["a", "b"]), (1, 3), (3, "a"), (4, [1]), (5, "q")]
    + [(3, {"context": "c", "question": "q", "choices": "ab"}), (3, {"context": "c", "question": "q"})]
    + [(6, ["a", "b", "c"]), (6, {"text_pair": "b"}), (6, 3)],
)
def test_other_items_are_refused(place, item):
    with pytest.raises(ValueError, match="An item for this task must .* Received: ") as caught:
        TASKS[place].make_example(item)
    assert "\n" not in str(caught.value) and json.dumps(item)

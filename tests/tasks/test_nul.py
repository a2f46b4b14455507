"""NUL in a table is refused with its row."""

import json

import pytest

from keras_bert_flow.tasks.registry import make_task

pytestmark = pytest.mark.any_backend
CLASSES, TAGS, LABELS = map(make_task, ("classification", "token_classification", "multi_label"))
CHOICES, ANSWERS = (
    make_task("multiple_choice", context="context", question=None, choices=("choices",)),
    make_task("question_answering"),
)
ARTICLE = {
    "title": "A",
    "paragraphs": [
        {"context": "a b", "qas": [{"id": "1", "question": "Who?", "answers": [{"text": "b", "answer_start": 2}]}]}
    ],
}
LINE = {"id": "1", "question": "Who?", "context": "a b", "answers": [{"text": "b", "answer_start": 2}]}


@pytest.mark.parametrize(
    ("task", "name", "content"),
    [
        (CLASSES, "t.tsv", "text\tlabel\na\tno\nfi\0ne\tyes\n"),
        (CLASSES, "t.csv", "text,label\na,no\nfine,y\0es\n"),
        (CLASSES, "t.jsonl", '\n{"text": "a", "label": "no"}\n{"text": "fi\\u0000ne", "label": "yes"}\n'),
        (CLASSES, "t.jsonl", '\n{"text": "a", "label": "no"}\n{"text": "fine", "label": "y\\u0000es"}\n'),
        (LABELS, "t.jsonl", '\n\n{"text": "a", "label": ["no", "y\\u0000es"]}\n'),
        (CHOICES, "t.jsonl", '\n\n{"context": "a", "choices": ["a", "b\\u0000"], "label": 0}\n'),
        (TAGS, "t.conll", "Jan B-PER\n\nDen\0 O\n"),
    ],
)
def test_nul_is_refused_with_its_row(tmp_path, task, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=r"row 3: .* must not hold NUL") as caught:
        task.read(tmp_path / name)
    assert "\n" not in str(caught.value) and "\0" not in str(caught.value)


@pytest.mark.parametrize("text", ["A", "a b", "1", "Who?", "b"])
def test_nul_in_questions_is_refused_with_its_place(tmp_path, text):
    spoilt = json.dumps(text)[:-1] + '\\u0000"'
    article = json.dumps({"data": [ARTICLE]}).replace(json.dumps(text), spoilt)
    line = json.dumps(LINE).replace(json.dumps(text), spoilt)
    for name, content in (("t.json", article), ("t.jsonl", line)):
        if spoilt not in content:
            continue  # only articles have a title
        (tmp_path / name).write_text(content)
        with pytest.raises(ValueError, match=r"t\.jsonl?, (article|row) 1.*NUL") as caught:
            ANSWERS.read(tmp_path / name)
        assert "\n" not in str(caught.value) and "\0" not in str(caught.value)


@pytest.mark.parametrize("field", ["words", "tags"])
def test_nul_in_lists_of_words_is_refused_with_its_row(tmp_path, field):
    good = {"words": ["Jan"], "tags": ["B-PER"]}
    (tmp_path / "t.jsonl").write_text(json.dumps(good) + "\n" + json.dumps(good | {field: ["Ja\0n"]}) + "\n")
    with pytest.raises(ValueError, match=rf"row 2: '{field}' must .* NUL") as caught:
        TAGS.read(tmp_path / "t.jsonl")
    assert "\0" not in str(caught.value)

"""NUL in a table is refused with its row."""

import pytest

from keras_bert_flow.tasks.make import make_task

pytestmark = pytest.mark.any_backend
CLASSES, TAGS = make_task("classification"), make_task("token_classification")


@pytest.mark.parametrize(
    ("task", "name", "content"),
    [
        (CLASSES, "t.tsv", "text\tlabel\na\tno\nfi\0ne\tyes\n"),
        (CLASSES, "t.csv", "text,label\na,no\nfine,y\0es\n"),
        (CLASSES, "t.jsonl", '\n{"text": "a", "label": "no"}\n{"text": "fi\\u0000ne", "label": "yes"}\n'),
        (CLASSES, "t.jsonl", '\n{"text": "a", "label": "no"}\n{"text": "fine", "label": "y\\u0000es"}\n'),
        (TAGS, "t.conll", "Jan B-PER\n\nDen\0 O\n"),
    ],
)
def test_nul_is_refused_with_its_row(tmp_path, task, name, content):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=r"row 3: .* must not hold NUL") as caught:
        task.read(tmp_path / name)
    assert "\n" not in str(caught.value) and "\0" not in str(caught.value)

import json
import sys
from dataclasses import replace
from importlib.util import find_spec

import pytest

from keras_bert_flow.tasks.classification import Classification, Regression
from keras_bert_flow.tasks.multi_label import MultiLabel
from keras_bert_flow.tasks.multiple_choice import MultipleChoice
from keras_bert_flow.tasks.registry import KINDS, make_task
from tests.patience import PATIENCE_SECONDS
from tests.tasks.files import RACE, message_of


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_makes_its_class(kind):
    if find_spec(KINDS[kind].split(":")[0]) is None:
        pytest.skip(f"{kind} has no module yet")
    task = make_task(kind)
    assert type(task).__name__ == KINDS[kind].split(":")[1]
    assert task.kind == kind
    assert make_task(**task.get_config()) == task


@pytest.mark.parametrize(
    "task",
    [
        Classification(text="0", text_pair="1", label="2", header=False, main_metric="f1", labels=("no", "yes")),
        Regression(lowest=0.0, highest=5),
        MultiLabel(label_columns=("a", "b"), labels=("a", "b"), threshold=0.25),
        MultipleChoice(**RACE),
        MultipleChoice(question=None),
    ],
)
def test_fields_of_a_task_are_json_and_make_it_again(task):
    stored = json.loads(json.dumps(task.get_config()))
    assert stored == task.get_config()
    assert make_task(**stored) == task
    assert hash(make_task(**stored)) == hash(task)  # lists have become tuples again
    assert make_task(**replace(task, header=not task.header).get_config()) != task


@pytest.mark.parametrize(
    ("kind", "fields", "parts"),
    [
        ("classify", {}, ["'classify'", "classification, regression, multi_label, multiple_choice, question_ans"]),
        (None, {}, ["None"]),
        (["regression"], {}, ["['regression']"]),
        ("classification", {"texts": "a"}, ["classification task", "'texts'", "text, text_pair, label, header"]),
        ("classification", {"kind_": "a"}, ["'kind_'"]),
        ("classification", {"text": 1}, ["`text`", "must be text", "1"]),
        ("classification", {"text_pair": 1}, ["`text_pair`", "must be text or null", "1"]),
        ("classification", {"header": "no"}, ["`header`", "true or false", "'no'"]),
        ("classification", {"header": 1}, ["`header`", "true or false"]),
        ("classification", {"labels": "ab"}, ["`labels`", "a list of text", "'ab'"]),
        ("classification", {"labels": ["a", 1]}, ["`labels`", "a list of text"]),
        ("regression", {"lowest": True}, ["`lowest`", "a number or null", "True"]),
        ("regression", {"lowest": 2, "highest": 1}, ["`lowest` must be less"]),
        ("multi_label", {"threshold": "0.5"}, ["`threshold`", "must be a number", "'0.5'"]),
    ],
)
def test_make_task_refuses(kind, fields, parts):
    message = message_of(ValueError, make_task, kind, **fields)
    assert [part for part in parts if part not in message] == [], message


def test_a_whole_number_is_a_number():
    assert make_task("regression", lowest=0, highest=5) == Regression(lowest=0.0, highest=5.0)


def test_a_task_loads_no_module_of_another(tmp_path):
    import subprocess

    code = (
        "import sys; from keras_bert_flow.tasks.registry import make_task; make_task('regression');"
        "print([name for name in sys.modules if name.startswith('keras_bert_flow.tasks.')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert ".classification'" in done.stdout
    others = (".multi_label'", ".token_classification'", ".question_answering'", ".multiple_choice'")
    assert not [name for name in others if name in done.stdout]

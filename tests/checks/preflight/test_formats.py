"""Files of tasks, in each format: what is missing, empty or unknown is refused before any work."""

import json
from pathlib import Path

import pytest

from keras_bert_flow.config.loading import load_config
from keras_bert_flow.training.finetuning.task_data import check_task_files
from tests.checks.preflight.refused import assert_refused


def squad(*answers: dict) -> str:
    questions = [{"id": "q", "question": "Who sat?", "answers": [*answers]}]
    return json.dumps({"data": [{"title": "t", "paragraphs": [{"context": "A cat sat.", "qas": questions}]}]})


def race(**changes) -> str:
    fields = {"article": "A cat sat.", "questions": ["Who sat?"], "options": [["A cat", "A dog"]], "answers": ["A"]}
    return json.dumps({name: value for name, value in (fields | changes).items() if value is not None})


COLA = "task: {{kind: classification, header: false, text: 3, label: 1, train: {0}, dev: {1}}}"
STSB = "task: {{kind: regression, text: sentence1, text_pair: sentence2, label: score, train: {0}, dev: {1}}}"
LINES = "task: {{kind: classification, train: {0}, dev: {1}}}"
NAMES = "task: {{kind: token_classification, train: {0}, dev: {1}}}"
QUESTIONS = "task: {{kind: question_answering, train: {0}, dev: {1}}}"
RACE = (
    "task: {{kind: multiple_choice, context: article, question: questions, choices: [options], label: answers, "
    "train: {0}, dev: {1}}}"
)
SWAG = "task: {{kind: multiple_choice, choices: [ending0, ending1], train: {0}, dev: {1}}}"

GOOD = {
    COLA: ("train.tsv", "gj04\t1\t\tA cat sat.\ngj04\t0\t*\tCat a sat.\n"),
    STSB: ("train.tsv", "sentence1\tsentence2\tscore\nA cat.\tA dog.\t2.5\nA cat.\tA cat.\t5\n"),
    LINES: ("train.jsonl", '{"text": "good", "label": "yes"}\n{"text": "bad", "label": "no"}\n'),
    NAMES: ("train.conll", "EU B-ORG\nrejects O\n\nBritish B-MISC\n"),
    QUESTIONS: ("train.json", squad({"text": "A cat", "answer_start": 0})),
    RACE: ("train/1.txt", race()),
    SWAG: ("train.csv", "sent1,sent2,ending0,ending1,label\na,b,c,d,1\n"),
}
# configuration → name of the dev file, its content, words of the message
WRONG = {
    "missing": [(task, f"nope{Path(name).suffix}", None, "nope") for task, (name, _) in GOOD.items()],
    "empty": [
        (COLA, "dev.tsv", "", "at least one example. Received: .*dev.tsv"),
        (STSB, "dev.tsv", "sentence1\tsentence2\tscore\n", "at least one example. Received: .*dev.tsv"),
        (LINES, "dev.jsonl", "\n", "at least one example. Received: .*dev.jsonl"),
        (NAMES, "dev.conll", "\n\n", "dev.conll"),
        (QUESTIONS, "dev.json", "", "dev.json.* must be JSON"),
        (QUESTIONS, "dev.json", '{"data": []}', "dev.json"),
        (RACE, "dev/1.json", "{}", "dev"),
        (SWAG, "dev.csv", "sent1,sent2,ending0,ending1,label\n", "at least one example"),
    ],
    "column": [
        (COLA, "dev.tsv", "gj04\t1\n", "the columns asked for. Received: '3'"),
        (STSB, "dev.tsv", "sentence1\tscore\nA cat.\t2.5\n", "the columns asked for. Received: 'sentence2'"),
        (LINES, "dev.jsonl", '{"text": "good"}\n', "row 1: .*columns asked for. Received: 'label'"),
        (NAMES, "dev.conll", "EU B-ORG\nrejects\n", "dev.conll, .*2"),
        (QUESTIONS, "dev.json", '{"data": [{"title": "t"}]}', "dev.json.*paragraphs"),
        (RACE, "dev/1.txt", race(questions=None), "dev/1.txt.*question"),
        (SWAG, "dev.csv", "sent1,sent2,ending0,label\na,b,c,0\n", "the columns asked for. Received: 'ending1'"),
    ],
    "label": [
        (COLA, "dev.tsv", "gj04\t2\t\tA cat sat.\n", "dev.tsv, row 1: .*Received: '2'"),
        (STSB, "dev.tsv", "sentence1\tsentence2\tscore\nA cat.\tA dog.\tmuch\n", "dev.tsv, row 2.*'much'"),
        (LINES, "dev.jsonl", '{"text": "good", "label": "perhaps"}\n', "dev.jsonl, row 1.*'perhaps'"),
        (NAMES, "dev.conll", "EU B-ODD\n", "dev.conll.*ODD"),
        (QUESTIONS, "dev.json", squad({"text": "A dog", "answer_start": 0}), "dev.json.*A dog"),
        (RACE, "dev/1.txt", race(answers=["E"]), "dev/1.txt.*E"),
        (SWAG, "dev.csv", "sent1,sent2,ending0,ending1,label\na,b,c,d,2\n", "dev.csv, row 2.*2"),
    ],
}
CASES = [(kind, *case) for kind, cases in WRONG.items() for case in cases]


@pytest.mark.parametrize("command", ["run", "finetune"])
@pytest.mark.parametrize(("kind", "task", "name", "content", "words"), CASES, ids=lambda value: str(value)[:40])
def test_wrong_file_of_a_task_is_refused(command, kind, task, name, content, words, place, capsys):
    train, text = GOOD[task]
    for path, written in ((place / train, text), (place / name, content)):
        if written is not None:
            path.parent.mkdir(exist_ok=True)
            path.write_text(written)
    folders = [str(Path(path).parent) if "/" in path else path for path in (train, name)]
    corpus = "corpus: {input: [corpus.txt]}\nfinetuning: {sequence_length: 32}\n"
    (place / "task.yaml").write_text(corpus + task.format(*folders))
    arguments = {"run": "run task.yaml", "finetune": "finetune --model model --task task.yaml --output new"}
    assert_refused(arguments[command].split(), words, place, capsys)


@pytest.mark.parametrize("task", GOOD, ids=lambda task: task[8:50])
def test_right_file_of_a_task_is_accepted(task, place):
    train, text = GOOD[task]
    (place / train).parent.mkdir(exist_ok=True)
    (place / train).write_text(text)
    folder = str(Path(train).parent) if "/" in train else train
    (place / "task.yaml").write_text(task.format(folder, folder))
    assert len(check_task_files(load_config("task.yaml")).training) in (1, 2)

"""Whatever is damaged of a table of a task or of a file of predictions, there is a value or one clear error."""

import json
from functools import partial

import pytest

from keras_bert_flow.config.loading import load_config
from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.evaluation.questions import score_predictions
from keras_bert_flow.tasks.formats.glue import write_glue_submission
from keras_bert_flow.tasks.registry import make_task
from tests.oracles.mutations import ERRORS, add_case, assert_read_or_refused, every_count

CASES = {}
case = partial(add_case, CASES)

PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "q")
TABLES = {
    "classification": {
        "a.tsv": "text\tlabel\na b\tno\nc\tyes\n",
        "a.csv": 'text,label\n"a ""b"\nc",no\nc,yes\n',
        "a.jsonl": '{"text": "a b", "label": "no"}\n{"text": "c", "label": 1}\n',
    },
    "regression": {"a.tsv": "text\tlabel\na b\t1.5\nc\t2\n", "a.jsonl": '{"text": "a", "label": 2.5}\n'},
    "multi_label": {"a.tsv": "text\tlabels\na b\tx,y\nc\t\n", "a.jsonl": '{"text": "a", "labels": ["x", "y"]}\n'},
    "token_classification": {
        "a.conll": "a B-X\nb I-X\n\nc O\n",
        "a.jsonl": '{"words": ["a", "b"], "tags": ["B-X", "O"]}\n',
    },
    "question_answering": {
        "a.json": json.dumps(
            {
                "data": [
                    {
                        "title": "t",
                        "paragraphs": [
                            {
                                "context": "a b c",
                                "qas": [
                                    {"id": "1", "question": "q", "answers": [{"text": "b", "answer_start": 2}]},
                                    {"id": "2", "question": "q", "answers": [], "is_impossible": True},
                                ],
                            }
                        ],
                    }
                ]
            }
        ),
        "a.jsonl": '{"id": "1", "question": "q", "context": "a b", "answers": [{"text": "b", "answer_start": 2}]}\n',
    },
    "multiple_choice": {
        "a.jsonl": '{"question": "q", "context": "a", "choices": ["b", "c"], "label": 0}\n',
    },
    "sentence_embedding": {"a.tsv": "text\ttext_pair\na b\tb\nc\tc\n", "a.jsonl": '{"text": "a", "text_pair": "b"}\n'},
}


def tables(kind, name):
    def write(folder):
        (folder / name).write_text(TABLES[kind][name])
        (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
        task, tokenizer = make_task(kind), read_tokenizer(folder)

        def read():
            for has_labels in (True, False):
                try:
                    examples = task.read(folder / name, has_labels=has_labels)
                    (task.learn(examples) if has_labels else task).encode(tokenizer, examples, 16)
                except ERRORS:
                    if not has_labels:
                        raise

        return read

    return write


for kind, names in TABLES.items():
    CASES |= {f"{kind}-{name}": (tables(kind, name), name) for name in names}

PREDICTIONS = {
    "classification": {
        "p.jsonl": '{"label": "no", "probabilities": {"no": 0.5, "yes": 0.5}}\n' * 2,
        "p.tsv": "index\tprediction\n0\tno\n1\tyes\n",
    },
    "regression": {"p.jsonl": '{"score": 1.5}\n' * 2, "p.tsv": "index\tprediction\n0\t1.5\n1\t2\n"},
    "multi_label": {"p.jsonl": '{"labels": ["x"], "probabilities": {"x": 0.5, "y": 0.5}}\n' * 2},
    "token_classification": {
        "p.conll": "a B-X B-X\nb I-X O\n\nc O O\n",
        "p.jsonl": '{"words": ["a", "b"], "tags": ["B-X", "O"]}\n{"words": ["c"], "tags": ["O"]}\n',
    },
    "question_answering": {"p.json": '{"1": "b", "2": ""}', "p.jsonl": '{"id": "1", "answer": "b"}\n' * 2},
}


def predictions(kind, name):
    def write(folder):
        table, content = next(iter(TABLES[kind].items()))
        (folder / table).write_text(content)
        (folder / name).write_text(PREDICTIONS[kind][name])
        settings = {"kind": kind, "train": str(folder / table), "dev": str(folder / table)}
        config = load_config(None, [f"task={json.dumps(settings)}"])
        return lambda: score_predictions(config, folder / name)

    return write


for kind, names in PREDICTIONS.items():
    CASES |= {f"predictions-{kind}-{name}": (predictions(kind, name), name) for name in names}


@case("WNLI.jsonl", "WNLI.tsv")
def glue_files(folder):
    (folder / "WNLI.jsonl").write_text('{"label": "0"}\n' * 146)
    (folder / "WNLI.tsv").write_text("index\tprediction\n" + "".join(f"{index}\t1\n" for index in range(146)))
    return lambda: [
        write_glue_submission(folder / "out.zip", {"WNLI.tsv": folder / f"WNLI.{end}"}) for end in ("jsonl", "tsv")
    ]


@every_count
@pytest.mark.parametrize("name", CASES)
@pytest.mark.any_backend
def test_mutated_files_are_read_or_refused_in_one_line(tmp_path, name, count):
    write, file = CASES[name]
    assert_read_or_refused(tmp_path, write, file, name, count)

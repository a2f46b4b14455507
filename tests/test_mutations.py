"""Whatever is damaged of a file that a command reads, there is a value or one clear error."""

import bz2
import contextlib
import gzip
import json
import lzma
import random
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from keras_bert_flow.config.corpus import CorpusConfig
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.conversion.directory_check import check_directory
from keras_bert_flow.conversion.sentence_files import read_max_tokens, read_sentence_files, write_sentence_files
from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.doctor.diagnose import diagnose
from keras_bert_flow.doctor.examples import show_examples
from keras_bert_flow.doctor.findings import as_text
from keras_bert_flow.evaluation.grid_table import grid_text, read_grid
from keras_bert_flow.evaluation.prediction_files import score_predictions
from keras_bert_flow.prediction.derived_task import find_task
from keras_bert_flow.prediction.line_vectors import open_index
from keras_bert_flow.records.manifest import MANIFEST, write_manifest
from keras_bert_flow.tasks.formats.glue import write_glue_submission
from keras_bert_flow.tasks.registry import make_task
from keras_bert_flow.text.corpus.documents import ReadingRule, find_fault, read_documents
from keras_bert_flow.training.state.logs import read_log
from tests.oracles.mutations import mutate_file
from tests.oracles.tiny_model import write_tiny_model
from tests.oracles.tiny_records import write_tiny_records

ERRORS = (ValueError, FileNotFoundError)
ROOT = Path(__file__).parents[1]
CASES = {}


def case(*files):
    """Register a case: a function that writes files into a folder and returns what reads them all again."""
    return lambda function: CASES.update({f"{function.__name__}-{file}": (function, file) for file in files})


@case("a.yaml")
def configuration(folder):
    (folder / "a.yaml").write_bytes((ROOT / "configs" / "quickstart.yaml").read_bytes())
    return lambda: load_config(folder / "a.yaml")


@case("config.json", "model.safetensors", "vocab.txt", "task.json", "tokenizer_config.json")
def model(folder):
    write_tiny_model(folder)
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')

    def read():
        check_directory(folder)
        tokenizer = read_tokenizer(folder)
        task, length = find_task(folder)
        return task.encode(tokenizer, [task.pose("a b c")], length)

    return read


@case("config.json")
def model_without_task(folder):
    read = model_of(folder)
    (folder / "task.json").unlink()
    return read


def model_of(folder):
    write_tiny_model(folder)

    def read():
        check_directory(folder)
        task, length = find_task(folder)
        return task.encode(read_tokenizer(folder), [task.pose("a b c")], length)

    return read


@case("modules.json", "sentence_bert_config.json", "1_Pooling/config.json")
def sentence_files(folder):
    write_sentence_files(folder, 8, "mean", True, 16)
    return lambda: (read_sentence_files(folder), read_max_tokens(folder))


TRAIN = "train-00000-of-00001.tfrecord"


def sign_records(folder):
    """Make the digests of a folder right again, unless the manifest itself is what was damaged."""
    try:
        values = json.loads((folder / MANIFEST).read_bytes())
        (folder / MANIFEST).unlink()
        write_manifest(folder, "records", values["key"], values["config"], {}, values["counters"])
    except Exception:  # the test is of the reader
        pass


@case(MANIFEST, "vocab.txt", TRAIN, TRAIN + ".index")
def records(folder):
    write_tiny_records(folder / "made", train=(3,), held_out=2)
    for path in list((folder / "made").iterdir()):
        path.rename(folder / path.name)
    (folder / "made").rmdir()
    damaged = {name: (folder / name).read_bytes() for name in (MANIFEST,)}

    def read():
        for sign in (False, True):
            if sign and (folder / MANIFEST).read_bytes() == damaged[MANIFEST]:
                sign_records(folder)
            with contextlib.suppress(*ERRORS):
                opened = PretrainingRecords(folder)
                _ = [opened[number] for number in range(min(len(opened), 9))]
                assert opened.sequence_length and opened.objective
            as_text(diagnose(str(folder), CorpusConfig(input=("x",)), sample=9))
            with contextlib.suppress(*ERRORS):
                show_examples(folder, 9)
        raise ValueError("not of interest")

    return read


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


PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "q")
for kind, names in TABLES.items():
    CASES |= {f"{kind}-{name}": (tables(kind, name), name) for name in names}
PACKERS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


@case("a.txt", "a.jsonl", "a.txt.gz", "a.txt.bz2", "a.txt.xz", "a.txt.zst", "a.parquet")
def corpus(folder):
    import pyarrow
    import zstandard
    from pyarrow import parquet

    text = "A line. Another one.\n\nA second document.\n" * 9
    (folder / "a.txt").write_text(text)
    (folder / "a.jsonl").write_text('{"text": "A line."}\n{"text": "Another.\\nWith two."}\n')
    for suffix, pack in (PACKERS | {".zst": zstandard.ZstdCompressor().compress}).items():
        (folder / f"a.txt{suffix}").write_bytes(pack(text.encode()))
    parquet.write_table(pyarrow.table({"text": text.split("\n")}), folder / "a.parquet", write_page_checksum=True)

    def read():
        for path in sorted(folder.iterdir()):
            if path.suffix not in (".gz", ".bz2", ".xz", ".zst", ".parquet", ".txt", ".jsonl"):
                continue
            fault = find_fault(str(path), ReadingRule())
            try:
                list(read_documents(str(path), ReadingRule(), Counter()))
                assert fault is None
            except ValueError:
                assert fault is not None
        raise ValueError("not of interest")

    return read


@case("index.json", "lines.npy", "vectors.npy")
def search_index(folder):
    (folder / "text.txt").write_text("a\nb\n\nc\n")
    facts = {"lines": "x", "model": {"a": "b"}}
    (folder / "index.json").write_text(json.dumps(facts))
    np.save(folder / "lines.npy", np.array([[1, 0], [2, 2], [4, 5]]))
    np.save(folder / "vectors.npy", np.eye(3, 4, dtype="float32"))

    def read():
        found = open_index(folder, folder / "text.txt", facts, 4)
        assert found.vectors.shape == (3, 4) and np.isfinite(found.vectors).all()
        return found.read(np.arange(3))

    return read


@case("log.jsonl", "grid.json")
def run_files(folder):
    (folder / "log.jsonl").write_text('{"step": 1, "loss": 2.5}\n{"step": 2, "loss": 2.0}\n')
    point = {"name": "p", "learning_rate": 1e-4, "batch_size": 2, "epochs": 3}
    point |= {"score": {"mean": 0.5, "standard_deviation": 0.1, "count": 2}, "runs": [], "seconds": 2.5}
    grid = {"kind": "classification", "main_metric": "accuracy", "chosen": "p", "points": [point]}
    (folder / "grid.json").write_text(json.dumps(grid))
    return lambda: (read_log(folder), grid_text(read_grid(folder)))


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


@pytest.mark.parametrize("count", [60, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.any_backend
def test_mutated_files_are_read_or_refused_in_one_line(tmp_path, name, count):
    write, file = CASES[name]
    read = write(tmp_path)
    chance = random.Random(name)
    whole = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    refused = 0
    for _ in range(count):
        (tmp_path / file).write_bytes(mutate_file(file, whole[tmp_path / file], chance))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of numbers that are not finite
                read()
        except ERRORS as error:
            refused += 1
            assert "\n" not in str(error) and 10 < len(str(error)) < 2000, error
        for path, content in whole.items():
            path.write_bytes(content)
    assert refused

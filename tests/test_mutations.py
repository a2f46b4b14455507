"""Whatever is damaged of a file that a command reads, there is a value or one clear error."""

import bz2
import contextlib
import gzip
import json
import lzma
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from keras_bert_flow.checks.diagnose import diagnose
from keras_bert_flow.checks.findings import as_text
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.config.text import CorpusConfig
from keras_bert_flow.conversion.sentence_files import read_max_tokens, read_sentence_files, write_sentence_files
from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.data.pretraining_records import PretrainingRecords, show_examples
from keras_bert_flow.evaluation.summary import align
from keras_bert_flow.evaluation.tables import grid_rows, read_grid
from keras_bert_flow.prediction.load import find_task
from keras_bert_flow.prediction.search import open_index
from keras_bert_flow.results.manifest import MANIFEST, write_manifest
from keras_bert_flow.text.corpus.documents import ReadingRule, find_fault, read_documents
from keras_bert_flow.training.loop.logs import read_log
from tests.oracles.mutations import ERRORS, add_case, assert_read_or_refused, every_count
from tests.oracles.tiny_model import check_directory, write_tiny_model
from tests.oracles.tiny_records import write_tiny_records

ROOT = Path(__file__).parents[1]
CASES = {}
case = partial(add_case, CASES)


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
        return task.encode(tokenizer, [task.make_example("a b c")], length)

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
        return task.encode(read_tokenizer(folder), [task.make_example("a b c")], length)

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
    return lambda: (read_log(folder), align(grid_rows(read_grid(folder))))


@every_count
@pytest.mark.parametrize("name", CASES)
@pytest.mark.any_backend
def test_mutated_files_are_read_or_refused_in_one_line(tmp_path, name, count):
    write, file = CASES[name]
    assert_read_or_refused(tmp_path, write, file, name, count)

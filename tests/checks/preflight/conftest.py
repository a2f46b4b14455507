"""A folder with a configuration that is right, and files that are wrong."""

import gzip
from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from pyarrow import parquet

from tests.oracles.tiny_model import write_tiny_model
from tests.oracles.tiny_records import write_tiny_records

TABLES = {
    "train.tsv": "text\tlabel\ngood\tyes\nbad\tno\n",
    "headless.tsv": "good\tyes\nbad\tno\n",
    "odd.tsv": "text\tlabel\ngood\tyes\nbad\tmaybe\n",
    "one.tsv": "text\tlabel\ngood\tyes\nbad\tyes\n",
    "empty.tsv": "text\tlabel\n",
    "ragged.tsv": "text\tlabel\ngood\tyes\nbad\n",
    "blank.tsv": "text\tlabel\ngood\tyes\n\tno\n",
    "numbers.tsv": "text\ttext_pair\tlabel\na\tb\t1\nc\td\tmuch\n",
    "tags.conll": "EU B-ORG\nrejects O\n\nBritish B-MISC\n",
    "odd.conll": "EU B-ORG\nrejects O\n\nBritish B-ODD\n",
    "broken.json": "{",
    "choices.csv": "sent1,sent2,ending0,ending1,ending2,label\na,b,c,d,e,0\n",
    "names.tsv": "text\tlabel\na\tx|y\nb\tx\n",
    "odd_names.tsv": "text\tlabel\na\tx|z\n",
    "one.txt": "A cat sat.\nIt ate.\n",
    "copies.txt": "A cat sat.\n\nA cat sat.\n\n A cat sat. \n",
    "empty.txt": "",
    "blank.txt": "\n \n\n",
    "pairs.jsonl": '{"sentence_good": "a b", "sentence_bad": "b a", "UID": "x"}\n',
    "long_pairs.jsonl": '{"sentence_good": "a", "sentence_bad": "%s", "UID": "x"}\n' % ("a " * 511),
    "odd_pairs.jsonl": '{"sentence_good": "a b", "sentence_bad": "b a", "UID": "x"}\n{"UID": "x"}\n',
    "texts.jsonl": '{"body": "A cat sat."}\n{"body": "A dog ran."}\n',
    "vocab.txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n",
    "good_vocab.txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n",
}


@pytest.fixture(scope="session")
def published(tmp_path_factory) -> Path:
    """Write a model directory and records, which no test changes."""
    folder = tmp_path_factory.mktemp("published")
    write_tiny_model(folder / "model")
    write_tiny_model(folder / "masked_lm", has_masked_lm=True)
    write_tiny_records(folder / "records")
    return folder


@pytest.fixture
def place(tmp_path: Path, published: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with a configuration that is right and files that are wrong."""
    for name, content in TABLES.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "corpus.txt").write_text("A cat sat. It ate.\n\nA dog ran.\n")
    (tmp_path / "latin.txt").write_bytes("caf\xe9 au lait\n".encode("latin-1"))
    (tmp_path / "cut.txt.gz").write_bytes(gzip.compress(b"A cat sat.\n" * 100)[:-9])
    parquet.write_table(pa.table({"body": ["A cat sat.", "A dog ran."], "number": [1, 2]}), tmp_path / "texts.parquet")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "folder").mkdir()
    for folder in ("model", "masked_lm", "records"):
        (tmp_path / folder).symlink_to(published / folder)
    values = {"task": {"train": "train.tsv", "dev": "train.tsv"}, "corpus": {"input": ["corpus.txt"]}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    return tmp_path

"""What docs/doctor.md shows is what the command prints, and it names every thing that is looked at."""

import re
from pathlib import Path

import pytest

from keras_bert_flow.checks.corpus import examine_corpus
from keras_bert_flow.checks.diagnose import diagnose, examine_records
from keras_bert_flow.checks.findings import as_text
from keras_bert_flow.config.text import CorpusConfig
from keras_bert_flow.data.pretraining_records import show_examples
from keras_bert_flow.results.artifacts import package_version
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from tests.oracles.plain_records import PIECES, make_many, publish_plain

PAGE = (Path(__file__).parents[3] / "docs" / "doctor.md").read_text(encoding="utf-8")
SUBJECTS = ("river", "lake", "sea")


def block(command: str) -> str:
    """Return what the page shows below a command."""
    (shown,) = re.findall(rf"```console\n\$ {re.escape(command)}\n(.*?)```", PAGE, re.DOTALL)
    return shown.rstrip()


def write_crawl(path: Path) -> None:
    """Write text as it comes from the web: short pages, a footer on each, a line in Latin-1, a broken character."""
    pages = [
        [f"Report {number} says that the {subject} rose. Subscribe to our newsletter." for subject in SUBJECTS][
            : 1 + number % 3
        ]
        + ["All rights reserved."]
        for number in range(40)
    ]
    pages += [[f"Wind from the west {number}."] for number in range(30)]
    text = "\n\n".join("\n".join(page) for page in pages)
    path.write_bytes(text.encode() + b"\n\nCaf\xe9 menu\n\nBroken \xef\xbf\xbd text \x07 here. And more.\n")


def test_corpus_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_crawl(tmp_path / "crawl.txt")
    assert block("kbf doctor crawl.txt") == as_text(diagnose("crawl.txt", CorpusConfig()))


def test_records_of_the_page(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = [
        row | {"next_sentence_labels": [int(number % 4 == 0)]}
        for number, row in enumerate(make_many(2000, kept=0.2, seed=3))
    ]
    publish_plain(tmp_path / "records", rows)
    printed = as_text(diagnose("records", CorpusConfig())).replace(f"version {package_version()}", "version 0.1.0")
    assert block("kbf doctor records") == printed
    assert block("kbf inspect records -n 1") == show_examples("records", 1)


def test_page_names_everything_that_is_looked_at(tmp_path):
    write_crawl(tmp_path / "crawl.txt")
    records = publish_plain(tmp_path / "records", make_many(50))
    diagnoses = [
        examine_corpus(str(tmp_path / "crawl.txt"), CorpusConfig(), tokenizer=WordPieceTokenizer(PIECES)),
        diagnose(str(records / "vocab.txt"), CorpusConfig()),
        examine_records(publish_plain(tmp_path / "counted", make_many(50), counters={"masked_tokens": 1})),
        examine_records(publish_plain(tmp_path / "sop", make_many(50), objective="mlm_sop")),
        examine_records(records),
    ]
    for diagnosis in diagnoses:
        (table,) = re.findall(
            rf"\n## {diagnosis.kind.capitalize()}\n(.*?)(?=\n## |\Z)", PAGE, re.DOTALL | re.IGNORECASE
        )
        named = set(re.findall(r"^\| ([^|]+?) +\|", table, re.MULTILINE))
        missing = {finding.what for finding in diagnosis.findings} - named
        assert not missing, (diagnosis.kind, missing)


@pytest.mark.parametrize("option", ["--vocab", "--cased", "--sample", "--json", "--set", "-n", "--part"])
def test_page_names_the_options(option):
    assert option in PAGE

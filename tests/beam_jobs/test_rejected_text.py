"""No text is lost silently: what is rejected is said with its bytes, reason and file, and too much is refused."""

import gzip
import json
import logging
import random
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from beam_jobs.build_vocabulary import build_vocabulary
from keras_bert_flow.config.text import CorpusConfig, VocabularyConfig
from keras_bert_flow.results.manifest import read_manifest
from keras_bert_flow.text.corpus.documents import ReadingRule, read_documents
from keras_bert_flow.text.corpus.lines import describe_rejected, rejected_bytes
from tests.beam_jobs.conftest import as_text, build, make_documents, names_in, read_folder
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
TEXT = as_text(make_documents())
RUSSIAN = "Река течёт\nна север.\n" * 500


def jsonl(field):
    return "".join(json.dumps({field: "\n".join(lines)}) + "\n" for lines in make_documents()).encode()


# What lies beside good text: its file's name, bytes, and what is said of it
BAD = {
    "a long line": ("long.txt", b"word " * 400_000 + b"\n", "2,000,001 bytes in 1 line longer than"),
    "binary": ("binary.txt", random.Random(0).randbytes(100_000), r"with NUL bytes.* \(.*binary\.txt\)"),
    "zeros": ("zeros.txt", bytes(100_000), r"100,000 bytes in 1 line with NUL bytes.* \(.*zeros\.txt\)"),
    "Latin-1": ("latin.txt", "café à la crème\n".encode("latin-1") * 5000, "80,000 bytes in 5,000 lines not UTF-8"),
    "UTF-16": ("wide.txt", RUSSIAN.encode("utf-16"), "with NUL bytes, as in binary files and UTF-16"),
    "UTF-16, big end first": ("wide.txt", RUSSIAN.encode("utf-16-be"), "with NUL bytes, as in binary files and UTF-16"),
    "UTF-16 of ASCII": ("wide.txt", TEXT.encode("utf-16"), "with NUL bytes, as in binary files and UTF-16"),
    "UTF-32": ("wide.txt", RUSSIAN.encode("utf-32"), "with NUL bytes, as in binary files and UTF-16"),
    "another field": ("a.jsonl", jsonl("body"), "in 170 lines not a JSON object with the text field"),
}


def write_both(folder, kind):
    """Write good text and bad text, and return the path of the bad file and what is said of it."""
    name, content, message = BAD[kind]
    (folder / "text").mkdir()
    (folder / "text" / "good.txt").write_text(TEXT)
    (folder / "text" / name).write_bytes(content)
    return folder / "text" / name, message


@pytest.mark.parametrize("kind", BAD)
def test_rejected_bytes_are_exact_and_have_a_reason(kind, tmp_path):
    path, message = write_both(tmp_path, kind)
    counts = Counter()
    list(read_documents(str(path), ReadingRule(), counts))
    lost = sum(rejected_bytes(counts).values())
    size = path.stat().st_size
    assert counts["bytes_read"] == size == lost + counts["bytes_used"] + counts["bytes_blank"]
    assert lost > 0.9 * size  # a few short lines of random bytes happen to be text
    assert re.search(message, describe_rejected(counts, [(reason, str(path), 1) for reason in rejected_bytes(counts)]))


@pytest.fixture(params=["binary", "UTF-16"])
def bad(request, tmp_path):
    return write_both(tmp_path, request.param)


@pytest.mark.first_form
def test_much_rejected_text_is_refused_with_its_reason_and_file(bad, vocabulary_file, tmp_path):
    path, message = bad
    with pytest.raises(ValueError, match=f"At most 1 % .*{message}.*--max-rejected-share=1") as caught:
        build(CorpusConfig(input=(str(path.parent),)), vocabulary_file, tmp_path / "out" / "r")
    assert path.name in str(caught.value) and "\n" not in str(caught.value)
    assert names_in(tmp_path / "out") == []


@pytest.mark.slow
def test_much_rejected_text_is_said_where_it_is_allowed(bad, vocabulary_file, tmp_path, caplog):
    path, _ = bad
    corpus = CorpusConfig(input=(str(path.parent),), max_rejected_share=1, lines="sentences")
    with caplog.at_level(logging.WARNING, "keras_bert_flow"):
        counters = read_manifest(build(corpus, vocabulary_file, tmp_path / "r")).counters
    (message,) = [record.getMessage() for record in caplog.records if record.name == "keras_bert_flow"]
    rejected = sum(number for name, number in counters.items() if name.startswith("bytes_rejected_"))
    size = len(TEXT) + path.stat().st_size
    assert message.startswith(f"{rejected:,} of {size:,} bytes ({100 * rejected / size:.2f} %) rejected: ")
    assert counters["bytes_read"] == size == rejected + counters["bytes_used"] + counters["bytes_blank"]


def test_little_rejected_text_is_said(tmp_path, caplog):
    (tmp_path / "a.txt").write_bytes(TEXT.encode() + b"caf\xe9\n")
    with caplog.at_level(logging.WARNING, "keras_bert_flow"):
        build_vocabulary(CorpusConfig(input=(str(tmp_path / "a.txt"),)), VocabularyConfig(size=90), tmp_path / "v")
    (message,) = [record.getMessage() for record in caplog.records if record.name == "keras_bert_flow"]
    assert message.endswith(f"rejected: 5 bytes in 1 line not UTF-8 ({tmp_path}/a.txt).")


@pytest.mark.slow
@pytest.mark.parametrize("cut", [7, 1000])
def test_skipped_files_count_with_the_bytes_that_are_known(cut, vocabulary_file, tmp_path):
    packed = gzip.compress(TEXT.encode() * 30, mtime=0)
    (tmp_path / "a.txt").write_text(TEXT)
    (tmp_path / "b.txt.gz").write_bytes(packed[:-cut])
    corpus = CorpusConfig(input=(str(tmp_path / "a.txt"), str(tmp_path / "b.txt.gz")), skip_bad_inputs=True)
    with pytest.raises(ValueError, match=r"in 1 file that cannot be read to the end \(.*b\.txt\.gz\)"):
        build(corpus, vocabulary_file, tmp_path / "r")
    allowing = corpus.model_copy(update={"max_rejected_share": 1.0})
    counters = read_manifest(build(allowing, vocabulary_file, tmp_path / "r")).counters
    lost = counters["bytes_rejected_damaged"]
    assert counters["bytes_read"] == lost + len(TEXT)
    assert len(packed) - cut <= lost <= 30 * len(TEXT)
    if cut == 7:  # within the checksum: all of the text could be unpacked
        assert lost > 0.99 * 30 * len(TEXT)


@pytest.mark.parametrize("stage", ["vocab", "records"])
def test_much_rejected_text_is_refused_before_the_rest_is_used(stage, vocabulary_file, tmp_path, monkeypatch):
    def use(*arguments):
        raise AssertionError("a document was used")

    monkeypatch.setattr("beam_jobs.instances.TokenizeDocuments.process", use)
    monkeypatch.setattr("beam_jobs.build_vocabulary.CountInBundles.process", use)
    corpus = CorpusConfig(input=(str(write_both(tmp_path, "Latin-1")[0].parent),))
    with pytest.raises(ValueError, match="At most 1 %"):
        if stage == "records":
            build(corpus, vocabulary_file, tmp_path / "r")
        else:
            build_vocabulary(corpus, VocabularyConfig(size=90), tmp_path / "r")


@pytest.mark.slow
def test_documents_without_a_token_are_said(vocabulary_file, tmp_path, caplog):
    (tmp_path / "a.txt").write_text(TEXT + "\n\x07\x08\n\n\u0301\n")
    with caplog.at_level(logging.WARNING, "keras_bert_flow"):
        build(CorpusConfig(input=(str(tmp_path / "a.txt"),)), vocabulary_file, tmp_path / "r")
    (message,) = [record.getMessage() for record in caplog.records if record.name == "keras_bert_flow"]
    assert message.startswith("2 of 172 documents hold no token")


@pytest.mark.slow
def test_files_of_other_endings_in_a_folder_are_said(tmp_path, caplog):
    (tmp_path / "text" / ".git").mkdir(parents=True)
    (tmp_path / "text" / "deep").mkdir()
    for name in ("a.txt", "deep/b.text", "README", "C.TXT", "d.md", ".git/index", "_SUCCESS", ".hidden"):
        (tmp_path / "text" / name).write_text(TEXT)
    with caplog.at_level(logging.WARNING, "keras_bert_flow"):
        for inputs in [(str(tmp_path / "text"),), (str(tmp_path / "text" / "a.txt"),), (f"{tmp_path}/text/*.txt",)]:
            settings = VocabularyConfig(size=90)
            build_vocabulary(CorpusConfig(input=inputs), settings, tmp_path / "v" / str(len(str(inputs))))
    (message,) = [record.getMessage() for record in caplog.records if record.name == "keras_bert_flow"]
    assert message.startswith("Not read in the folders of the corpus, with other endings than .txt, ")
    assert message.endswith(f": {tmp_path}/text/C.TXT, {tmp_path}/text/README, {tmp_path}/text/d.md and 1 more.")


@pytest.mark.slow
def test_all_rejected_names_the_cause_and_not_blank_lines(vocabulary_file, tmp_path):
    (tmp_path / "a.txt").write_bytes("café\n\nà\n".encode("latin-1") * 20)
    corpus = CorpusConfig(input=(str(tmp_path / "a.txt"),))
    for change in ({}, {"max_rejected_share": 1.0}):
        with pytest.raises(ValueError, match="140 bytes in 40 lines not UTF-8.*Convert text to UTF-8") as caught:
            build(corpus.model_copy(update=change), vocabulary_file, tmp_path / "r")
        assert "blank lines" not in str(caught.value)


@pytest.mark.slow
def test_limit_changes_no_key_and_no_byte(vocabulary_file, tmp_path):
    folder = write_both(tmp_path, "Latin-1")[0].parent
    corpora = [CorpusConfig(input=(str(folder),), max_rejected_share=share) for share in (0.9999, 1)]
    first, second = (read_folder(build(c, vocabulary_file, tmp_path / str(n))) for n, c in enumerate(corpora))
    assert first == second
    with pytest.raises(ValueError, match="At most 1 %"):  # also of what is there already
        build(CorpusConfig(input=corpora[0].input), vocabulary_file, tmp_path / "0")


@pytest.mark.slow
def test_bytes_are_the_same_with_two_workers(vocabulary_file, tmp_path):
    (tmp_path / "text").mkdir()
    for name, content, _ in BAD.values():
        (tmp_path / "text" / name).write_bytes(content)
    (tmp_path / "text" / "good.txt").write_text(TEXT * 20)
    corpus = CorpusConfig(input=(str(tmp_path / "text"),), max_rejected_share=1, skip_bad_inputs=True)
    build_vocabulary(corpus, VocabularyConfig(size=2000), tmp_path / "one")
    code = "import sys; from keras_bert_flow.cli import main; sys.exit(main())"
    options = ["--direct_num_workers=2", "--direct_running_mode=multi_processing", "--skip-bad-inputs"]
    arguments = ["vocab", "--input", tmp_path / "text", "--size", "2000", "--output", tmp_path / "two"]
    command = [sys.executable, "-c", code, *arguments, "--max-rejected-share=1", *options]
    refused = [part for part in command if part != "--max-rejected-share=1"]
    done = subprocess.run(refused, cwd=ROOT, timeout=PATIENCE_SECONDS, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.splitlines()[-1].startswith("kbf: At most 1 %"), done.stderr
    assert "Traceback" not in done.stderr
    done = subprocess.run(command, cwd=ROOT, timeout=PATIENCE_SECONDS, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert " bytes (" in done.stderr
    assert read_folder(tmp_path / "one") == read_folder(tmp_path / "two")

"""Every verdict on a corpus, provoked by a text that is odd in one way, and its numbers counted again."""

import gzip
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from beam_jobs.build_records import build_records
from beam_jobs.build_vocabulary import build_vocabulary
from keras_bert_flow.checks.corpus import examine_corpus
from keras_bert_flow.checks.findings import as_json
from keras_bert_flow.config.text import CorpusConfig, RecordsConfig, VocabularyConfig
from keras_bert_flow.results.manifest import read_manifest
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES

CORPUS = CorpusConfig(input=("unused",))
SENTENCES = CorpusConfig(input=("unused",), lines="sentences")
UNKNOWN = ("unknown tokens", "unknown characters")
NOUNS = ("cat", "dog", "bird", "horse", "mouse", "snake", "wolf", "goat")
GOOD = [[f"The {noun} number {n} goes home. It is night {n} for a {noun}." for n in range(9)] for noun in NOUNS]


def write(path: Path, documents: list[list[str]]) -> str:
    path.write_text("\n\n".join("\n".join(lines) for lines in documents) + "\n", encoding="utf-8")
    return str(path)


def not_ok(diagnosis) -> dict[str, str]:
    return {finding.what: finding.verdict for finding in diagnosis.findings if finding.verdict != "ok"}


def find(diagnosis, what):
    (finding,) = [finding for finding in diagnosis.findings if finding.what == what]
    return finding


@pytest.fixture
def good(tmp_path) -> str:
    return write(tmp_path / "good.txt", GOOD)


def test_good_corpus_is_all_ok(good):
    diagnosis = examine_corpus(good, CORPUS)
    assert not_ok(diagnosis) == {}
    assert [finding.what for finding in diagnosis.findings] == [
        "files",
        "documents",
        "one sentence",
        "long sentences",
        "longest line",
        "rejected lines",
        "rejected bytes",
        "no text",
        "repeated lines",
        "repeated documents",
    ]


def test_numbers_agree_with_a_count_by_hand(good):
    numbers = examine_corpus(good, CORPUS).numbers
    lines = [line for document in GOOD for line in document]
    assert (numbers["files"], numbers["file_bytes"]) == (1, Path(good).stat().st_size)
    assert (numbers["documents"], numbers["lines"], numbers["sentences"]) == (8, 72, 144)
    assert numbers["lines_read"] == 72 + 7
    assert numbers["words"] == sum(len(re.findall(r"\w+|[.]", line)) for line in lines)
    assert numbers["characters"] == numbers["text_bytes"] == sum(map(len, lines))
    assert numbers["longest_line_bytes"] == max(map(len, lines))
    assert numbers["sentences_per_document"] == [[17, 32, 8]]
    words = Counter(len(re.findall(r"\w+|[.]", part)) for line in lines for part in re.findall(r"[^.]+[.]", line))
    assert numbers["words_per_sentence"] == [[5, 8, sum(words.values())]]
    assert set(words) <= set(range(5, 9))


@pytest.mark.slow
def test_numbers_agree_with_those_of_the_jobs(tmp_path, good):
    """The Beam jobs count the same text on their own way through it."""
    corpus = CorpusConfig(input=(good,))
    vocabulary = build_vocabulary(corpus, VocabularyConfig(size=90), tmp_path / "v") / "vocab.txt"
    config = RecordsConfig(sequence_length=32, max_predictions=5)
    records = read_manifest(build_records(corpus, config, vocabulary, False, tmp_path / "r")).counters
    words = read_manifest(tmp_path / "v").counters
    found = examine_corpus(good, CORPUS, tokenizer=WordPieceTokenizer.from_file(vocabulary)).numbers
    assert found["words"] == words["words"]
    for name in ("documents", "sentences", "tokens", "unknown_tokens", "documents_of_one_sentence", "lines_read"):
        assert found[name] == records[name], name
    assert found["tokens_per_word"] == pytest.approx(records["tokens"] / words["words"])


def test_json_is_the_same_every_time(good):
    first, second = (as_json(examine_corpus(good, CORPUS)) for _ in range(2))
    assert first == second
    assert json.loads(first)["verdict"] == "ok"


def test_kinds_of_file_are_counted_together(tmp_path):
    write(tmp_path / "a.txt", GOOD[:2])
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps({"text": "\n".join(lines)}) for lines in GOOD[2:5]))
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(Path(write(tmp_path / "x.txt", GOOD[5:])).read_bytes()))
    (tmp_path / "x.txt").unlink()
    numbers = examine_corpus(str(tmp_path), CORPUS).numbers
    assert (numbers["files"], numbers["documents"], numbers["lines"], numbers["sentences"]) == (3, 8, 72, 144)


@pytest.mark.parametrize(("documents", "expected"), [([], "error"), ([sum(GOOD, [])], "error"), (GOOD[:2], "ok")])
def test_one_document_is_too_few(tmp_path, documents, expected):
    diagnosis = examine_corpus(write(tmp_path / "a.txt", documents), CORPUS)
    finding = find(diagnosis, "documents")
    assert finding.verdict == expected
    assert ("blank lines" in finding.remedy) == (expected == "error")


@pytest.mark.parametrize(("single", "expected"), [(2, "ok"), (6, "warning"), (None, "error")])
def test_documents_of_one_sentence(tmp_path, single, expected):
    alone = [[f"Only {number}."] for number in range(8 if single is None else single)]
    diagnosis = examine_corpus(write(tmp_path / "a.txt", alone + ([] if single is None else GOOD)), CORPUS)
    assert find(diagnosis, "one sentence").verdict == expected
    assert diagnosis.numbers["documents_of_one_sentence"] == len(alone)


def test_paragraphs_read_as_sentences_are_too_long(tmp_path):
    path = write(tmp_path / "a.txt", [[" ".join(lines * 3)] * 2 for lines in GOOD])
    finding = find(examine_corpus(path, SENTENCES), "long sentences")
    assert (finding.verdict, "corpus.lines=paragraphs" in finding.remedy) == ("error", True)
    assert find(examine_corpus(path, CORPUS), "long sentences").verdict == "ok"
    tables = write(tmp_path / "b.txt", [*GOOD, *[[f"{number} " * 200] for number in range(20)]])
    finding = find(examine_corpus(tables, CORPUS), "long sentences")
    assert (finding.verdict, "full stops" in finding.remedy) == ("warning", True)


def test_very_long_line_is_a_warning(tmp_path):
    path = write(tmp_path / "a.txt", [*GOOD, ["It is. " * 20_000, "Short."]])
    diagnosis = examine_corpus(path, CORPUS)
    assert find(diagnosis, "longest line").verdict == "warning"
    assert diagnosis.numbers["longest_line_bytes"] == 139_999


def test_rejected_lines_are_told_by_reason(tmp_path):
    good = [json.dumps({"text": "\n".join(lines)}).encode() for lines in GOOD * 5]
    bad = [b'{"body": "x"}', b"\xff", b"x" * 3000, b"no json"]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([*good, *bad]))
    corpus = CorpusConfig(input=("unused",), max_line_bytes=2000)
    diagnosis = examine_corpus(str(tmp_path / "a.jsonl"), corpus)
    finding = find(diagnosis, "rejected lines")
    assert diagnosis.numbers["lines_rejected"] == {"not_json_with_text": 2, "not_utf8": 1, "too_long": 1}
    assert (finding.verdict, finding.value) == ("warning", "4 of 44: 2 not json with text, 1 not utf8, 1 too long")
    (tmp_path / "a.jsonl").write_bytes(b"\n".join([*good[:9], *bad]))
    assert find(examine_corpus(str(tmp_path / "a.jsonl"), corpus), "rejected lines").verdict == "error"


@pytest.mark.parametrize(("line_bytes", "verdict"), [(10, "warning"), (100, "error")])
def test_rejected_bytes_have_a_verdict(line_bytes, verdict, tmp_path, good):
    size = Path(good).stat().st_size
    with open(good, "ab") as file:
        file.write(b"\n" + b"\xff" * line_bytes + b"\n")
    diagnosis = examine_corpus(good, CORPUS)
    finding = find(diagnosis, "rejected bytes")
    assert finding.verdict == verdict
    assert finding.value.startswith(f"{line_bytes + 1} of {size + line_bytes + 2:,} bytes (")
    assert diagnosis.numbers["bytes_rejected"] == {"not_utf8": line_bytes + 1}
    assert find(
        examine_corpus(good, CORPUS.model_copy(update={"max_rejected_share": 0.5})), "rejected bytes"
    ).verdict == ("warning")


def test_corpus_that_is_all_rejected_has_its_remedy(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xff\n" * 9)
    finding = find(examine_corpus(str(tmp_path / "a.txt"), CORPUS), "documents")
    assert (finding.verdict, finding.remedy) == ("error", "Convert text to UTF-8, as by iconv -f LATIN1 -t UTF-8.")


@pytest.mark.parametrize(
    ("added", "count", "expected"),
    [
        ("a tab\tand é, 漢字, \u200d and \u00a0 are text", 0, "ok"),
        ("\ufffd", 1, "warning"),
        ("\ufffd\x07", 2, "warning"),
        ("\x08\x01\x02\x9f" * 50, 200, "error"),
    ],
)
def test_characters_that_are_no_text(tmp_path, added, count, expected):
    diagnosis = examine_corpus(write(tmp_path / "a.txt", [*GOOD, [f"Here {added} is. And on."]]), CORPUS)
    assert diagnosis.numbers["non_text_characters"] == count
    assert find(diagnosis, "no text").verdict == expected


def test_repeated_lines_and_documents(tmp_path):
    footer = [[*lines, "Click here. All rights reserved."] * 1 for lines in GOOD]
    diagnosis = examine_corpus(write(tmp_path / "a.txt", [[*lines, *["Click here."] * 2] for lines in GOOD]), CORPUS)
    assert not_ok(diagnosis) == {"repeated lines": "warning"}
    assert diagnosis.numbers["repeated_line_share"] == pytest.approx(15 / 88)
    assert not_ok(examine_corpus(write(tmp_path / "a.txt", footer), CORPUS)) == {}  # 7 of 80 are few
    diagnosis = examine_corpus(write(tmp_path / "b.txt", [*GOOD, GOOD[0]]), CORPUS)
    assert diagnosis.numbers["repeated_document_share"] == pytest.approx(1 / 9)
    assert find(diagnosis, "repeated documents").verdict == "warning"


def test_characters_are_counted_where_a_lost_sentence_is_one_token(tmp_path):
    thai = "".join(chr(0x0E01 + number % 40) for number in range(250))  # without a space
    path = write(tmp_path / "a.txt", [["kurz", "kurz", thai]] * 3)
    tokenizer = WordPieceTokenizer([*SPECIAL_PIECES, "kurz"], cased=True)
    found = find(examine_corpus(path, CORPUS, tokenizer=tokenizer), "unknown characters")
    assert (found.verdict, found.value) == ("error", "96.90 % of 774 characters become [UNK]")
    assert "by a segmenter such as pythainlp" in found.remedy and "kbf vocab" not in found.remedy
    diagnosis = examine_corpus(path, CORPUS, cased=True)  # whatever the vocabulary
    assert find(diagnosis, "unknown characters") == found
    assert diagnosis.numbers["long_word_characters"] == 750


def test_marks_of_letters_that_uncased_text_loses_are_counted(tmp_path):
    path = write(tmp_path / "a.txt", [["हिन्दी में है", "größer"], ["और"]])
    found = find(examine_corpus(path, CORPUS), "stripped characters")
    assert (found.verdict, found.value.split(" of ")[0]) == ("error", "21.05 %")
    assert "vocabulary.cased: true" in found.remedy
    assert "stripped characters" not in {finding.what for finding in examine_corpus(path, CORPUS, cased=True).findings}


def test_tokens_are_counted_with_a_vocabulary(good):
    letters = sorted(
        {character for lines in GOOD for line in lines for character in line.lower() if character.isalnum()}
    )
    whole = sorted({word for lines in GOOD for line in lines for word in re.findall(r"\w+", line.lower())})
    every = [*SPECIAL_PIECES, ".", *letters, *(word for word in whole if len(word) > 1)]
    cases = [(every, {}), ([piece for piece in every if piece != "cat"], dict.fromkeys(UNKNOWN, "warning"))]
    cases += [(every[:6], dict.fromkeys(UNKNOWN, "error"))]
    spelt = [*SPECIAL_PIECES, ".", *letters, *(f"##{letter}" for letter in letters)]
    cases += [(spelt, {"tokens per word": "warning"})]
    for pieces, expected in cases:
        diagnosis = examine_corpus(good, CORPUS, tokenizer=WordPieceTokenizer(pieces))
        assert not_ok(diagnosis) == expected
    numbers = examine_corpus(good, CORPUS, tokenizer=WordPieceTokenizer(spelt)).numbers
    text = "".join(line for lines in GOOD for line in lines)
    assert (numbers["tokens"], numbers["unknown_tokens"]) == (len(text.replace(" ", "")), 0)


def test_damaged_file_is_an_error_and_the_others_are_read(tmp_path):
    write(tmp_path / "b.txt", GOOD)
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"The cat. " * 1000)[:-20])
    diagnosis = examine_corpus(str(tmp_path), CORPUS)
    finding = find(diagnosis, "files")
    assert (finding.verdict, "a.txt.gz" in finding.value) == ("error", True)
    assert diagnosis.numbers["documents"] == 8


def test_empty_file_is_a_warning(tmp_path):
    write(tmp_path / "b.txt", GOOD)
    (tmp_path / "a.txt").write_text("\n\n")
    finding = find(examine_corpus(str(tmp_path), CORPUS), "files")
    assert (finding.verdict, "a.txt" in finding.value) == ("warning", True)

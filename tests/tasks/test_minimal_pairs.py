"""Minimal pairs: BLiMP's lines are read plain and packed, and each fault is one line that names the row."""

import bz2
import gzip
import json
import lzma
import os
from pathlib import Path

import pytest
import zstandard

from keras_bert_flow.tasks.minimal_pairs import encode_pairs, read_minimal_pairs
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES

DATA = os.environ.get("KBF_TEST_DATA")
PACK = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
TOKENIZER = WordPieceTokenizer([*SPECIAL_PIECES, "a", "b", "c"])
POSITIONS = 8


def line(good="a b", bad="b a", phenomenon="order", **fields) -> str:
    return json.dumps({"sentence_good": good, "sentence_bad": bad, "UID": phenomenon, **fields})


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{text}\n" for text in lines))
    return path


@pytest.mark.parametrize("suffix", PACK)
def test_pairs_are_read_plain_and_packed(tmp_path, suffix):
    path = tmp_path / f"pairs.jsonl{suffix}"
    text = f"{line(field='syntax', linguistics_term='islands', pairID='0')}\n\n{line('c', 'b')}\n"
    path.write_bytes(PACK[suffix](text.encode()))
    first, second = read_minimal_pairs(path)
    assert (first.good, first.bad) == ("a b", "b a")
    assert first.groups == {"phenomena": "order", "linguistics_terms": "islands", "fields": "syntax"}
    assert second.groups == {"phenomena": "order", "linguistics_terms": None, "fields": None}
    assert second.place == f"{path}, row 3"


def test_limit_keeps_the_first_pairs_of_each_phenomenon(tmp_path):
    names = ["x", "y", "x", "x", "y", "z"]
    path = write(tmp_path / "p.jsonl", *(line(good=f"a {number}", phenomenon=x) for number, x in enumerate(names)))
    kept = read_minimal_pairs(path, limit=2)
    assert [pair.good for pair in kept] == ["a 0", "a 1", "a 2", "a 4", "a 5"]
    with pytest.raises(ValueError, match=r"`limit` must be at least 1\. Received: limit=0"):
        read_minimal_pairs(path, limit=0)
    write(path, line(), line(), "{")
    with pytest.raises(ValueError, match="row 3"):  # also what is not kept is checked
        read_minimal_pairs(path, limit=1)


FAULTS = {
    "{": "must be one JSON object. Received: {",
    '["a", "b"]': "must be one JSON object",
    '{"sentence_good": "a", "sentence_good": "a"}': "must be one JSON object",
    '{"sentence_good": "a", "sentence_bad": "b"}': "Received: no UID. Fields here: sentence_good, sentence_bad",
    '{"sentence": "a", "UID": "x"}': "Received: no sentence_good",
    line(good=""): "`sentence_good` must be text. Received: ''",
    line(bad=" \t"): "`sentence_bad` must be text",
    line(bad=3): "`sentence_bad` must be text. Received: 3",
    line(bad=None): "`sentence_bad` must be text. Received: None",
    line(good="a \ud800"): r"`sentence_good` must be text. Received: 'a \ud800'",
    line(phenomenon=["x"]): "`UID` must be text",
    line(field=7): "`field` must be text. Received: 7",
    line(linguistics_term=""): "`linguistics_term` must be text",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_line_is_refused_with_its_row(tmp_path, fault):
    path = write(tmp_path / "p.jsonl", line(), fault, line())
    with pytest.raises(ValueError, match=r"p\.jsonl, row 2: ") as caught:
        read_minimal_pairs(path)
    assert FAULTS[fault] in str(caught.value) and "\n" not in str(caught.value)


def test_faulty_file_is_refused(tmp_path):
    def message_of(name: str, content: bytes) -> str:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=r".") as caught:
            read_minimal_pairs(tmp_path / name)
        return str(caught.value)

    random = os.urandom(3000).hex()
    for suffix, name in ((".gz", "gzip"), (".bz2", "bzip2"), (".xz", "xz"), (".zst", "Zstandard")):
        whole = PACK[suffix](f"{line()}\n{line(bad=random)}\n".encode())
        for content in (whole[:-20], b"no such thing", whole[:30] + b"\xff\xff" + whole[32:]):
            found = message_of(f"p.jsonl{suffix}", content)
            assert f"A {suffix} file must be whole {name}. Received: " in found, found
    bomb = PACK[".zst"](f"{line(bad='a' * 10_000)}\n".encode() * 2000)
    assert "at most 100 times its size" in message_of("bomb.jsonl.zst", bomb)
    assert "There must be a minimal pair to score" in message_of("empty.jsonl", b"\n")
    assert "row 1: a table must be UTF-8" in message_of("latin.jsonl", b'{"UID": "\xe9"}\n')
    assert "row 1: a table must not hold NUL" in message_of("nul.jsonl", b'{"UID": "\0"}\n')
    assert "must end in .jsonl, or in it and one of .gz, .bz2, .xz, .zst." in message_of("p.tsv", b"a\tb\n")
    with pytest.raises(FileNotFoundError, match=r"Received: .*none\.jsonl, which is not one"):
        read_minimal_pairs(tmp_path / "none.jsonl")


def test_equal_sentences_are_encoded_once(tmp_path):
    path = write(tmp_path / "p.jsonl", line("a b", "b a"), line("A  B", "c"), line("c", "C"))
    encoded = encode_pairs(TOKENIZER, read_minimal_pairs(path), POSITIONS)
    assert [ids.tolist() for ids in encoded.sentences] == [[2, 5, 6, 3], [2, 6, 5, 3], [2, 7, 3]]
    assert (encoded.good.tolist(), encoded.bad.tolist()) == ([0, 0, 2], [1, 2, 2])


def test_sentence_must_have_tokens_and_fit_the_model(tmp_path):
    fits = line(bad="a " * (POSITIONS - 2))
    path = write(tmp_path / "p.jsonl", fits, line(bad="a " * (POSITIONS - 1)))
    with pytest.raises(ValueError, match="row 2: `sentence_bad` must fit the model's 8 positions.* Received: 9 tokens"):
        encode_pairs(TOKENIZER, read_minimal_pairs(path), POSITIONS)
    path = write(tmp_path / "p.jsonl", fits, line(good="\u200b\u0300"))  # removed, and an accent that is stripped
    with pytest.raises(ValueError, match="row 2: `sentence_good` must have at least one token. Received: none"):
        encode_pairs(TOKENIZER, read_minimal_pairs(path), POSITIONS)
    path = write(tmp_path / "p.jsonl", fits)
    assert [len(ids) for ids in encode_pairs(TOKENIZER, read_minimal_pairs(path), POSITIONS).sentences] == [4, 8]


@pytest.mark.slow
@pytest.mark.skipif(not DATA, reason="KBF_TEST_DATA is not set")
def test_blimp_is_read_whole():
    path = Path(DATA, "blimp", "blimp.jsonl.zst")
    pairs = read_minimal_pairs(path, limit=20)
    assert len(pairs) == 67 * 20
    assert len({pair.groups["phenomena"] for pair in pairs}) == 67
    assert len({pair.groups["linguistics_terms"] for pair in pairs}) == 13

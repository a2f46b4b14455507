"""Every verdict on a vocabulary, provoked by a file that is odd in one way; the published ones are fine."""

import os
from collections import Counter
from pathlib import Path

import pytest
import tokenizers

from keras_bert_flow.checks.diagnose import examine_vocabulary, is_reachable
from keras_bert_flow.text.learner import learn_vocabulary
from keras_bert_flow.text.tokenizers.normalization import normalize_text
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES

LETTERS = [*"abcdefgh", *(f"##{letter}" for letter in "abcdefgh")]
GOOD = [*SPECIAL_PIECES, *LETTERS, "bad", "##ed", ".", "[unused1]"]


def examine(tmp_path, pieces, cased=None):
    path = tmp_path / "vocab.txt"
    content = pieces if isinstance(pieces, bytes) else "".join(f"{piece}\n" for piece in pieces).encode()
    path.write_bytes(content)
    return examine_vocabulary(path, cased)


def not_ok(diagnosis) -> dict[str, str]:
    return {finding.what: finding.verdict for finding in diagnosis.findings if finding.verdict != "ok"}


def find(diagnosis, what):
    (finding,) = [finding for finding in diagnosis.findings if finding.what == what]
    return finding


def test_good_vocabulary_is_all_ok(tmp_path):
    diagnosis = examine(tmp_path, GOOD)
    assert not_ok(diagnosis) == {}
    assert diagnosis.numbers == {
        "pieces": 25,
        "cased": False,
        "special_ids": {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "[SEP]": 3, "[MASK]": 4},
        "unused_pieces": 1,
        "empty_lines": 0,
        "repeated_pieces": 0,
        "continuation_pieces": 9,
        "characters": 9,
        "characters_never_alone": 0,
        "folded_pieces": 0,
        "unreachable_pieces": 0,
        "characters_per_piece": [[1, 1, 17], [2, 2, 1], [3, 3, 1]],
    }
    assert find(diagnosis, "special pieces").value == "ids [PAD] 0, [UNK] 1, [CLS] 2, [SEP] 3, [MASK] 4"


@pytest.mark.parametrize("content", ["\r\n".join(GOOD).encode(), ("\ufeff" + "\n".join(GOOD)).encode("utf-8")])
def test_line_ends_and_byte_order_mark_are_no_fault(tmp_path, content):
    assert not_ok(examine(tmp_path, content)) == {}


@pytest.mark.parametrize(
    ("pieces", "expected", "shown"),
    [
        ("\n".join([*GOOD, "\xe9"]).encode("latin-1"), {"encoding": "error"}, "not UTF-8"),
        (b"", {"size": "error", "special pieces": "error", "continuations": "warning"}, "0 pieces"),
        ([piece for piece in GOOD if piece not in ("[MASK]", "[SEP]")], {"special pieces": "error"}, "[SEP] [MASK]"),
        ([GOOD[5], *GOOD[:5], *GOOD[6:]], {"special pieces": "warning"}, "[PAD] 1"),
        ([*GOOD, "bad", "##ed", "bad"], {"lines": "error"}, "2 pieces twice or more: 'bad' on lines 22, 26, 28;"),
        ([*GOOD, "", ""], {"lines": "error"}, "2 empty, such as line 26"),
        ([piece for piece in GOOD if "##" not in piece], {"continuations": "warning"}, "0.00 %"),
        ([*GOOD, "bax"], {"characters": "warning"}, "1 of them only inside longer pieces, such as x"),
    ],
)
def test_each_fault_has_its_verdict(tmp_path, pieces, expected, shown):
    diagnosis = examine(tmp_path, pieces)
    assert not_ok(diagnosis) == expected
    assert any(shown in finding.value for finding in diagnosis.findings)
    assert all(finding.remedy for finding in diagnosis.findings if finding.verdict != "ok")


def test_all_faults_are_told_at_once(tmp_path):
    found = not_ok(examine(tmp_path, [*GOOD[1:], "", "bad"]))
    assert found == {"special pieces": "error", "lines": "error"}


def test_faults_of_lines_are_counted_apart(tmp_path):
    numbers = examine(tmp_path, [*GOOD, "", "", "", "bad", "bad", "a"]).numbers
    assert (numbers["empty_lines"], numbers["repeated_pieces"]) == (3, 3)


def test_case_is_guessed_unless_told(tmp_path):
    plain = [
        *GOOD,
        *(f"{a}{b}" for a in "abcdefgh" for b in "abcdefgh"),
        *(f"a{a}{b}" for a in "abcd" for b in "abcdefgh"),
    ]
    few = examine(tmp_path, [*plain, "Bad"])
    assert (few.numbers["cased"], few.numbers["folded_pieces"]) == (False, 1)
    assert not_ok(few)["case"] == "warning" and "such as Bad" in find(few, "case").value
    many = examine(tmp_path, [*plain, "Bad", "##Bed", "b\u00e9"])
    assert many.numbers["cased"] is True and "guess" in find(many, "case").value
    assert "case" not in not_ok(many)
    assert not_ok(examine(tmp_path, [*plain, "Bad", "##Bed"], cased=False))["case"] == "warning"
    told = examine(tmp_path, plain, cased=True)
    assert not_ok(told) == {"case": "warning"} and "guess" not in find(told, "case").value


def test_pieces_that_no_text_reaches_are_counted(tmp_path):
    unreachable = ["a.b", "##.", "##\u6f22", "BAD", "e\u0301", "a b", "x" * 201, "##", "##\u3002"]
    diagnosis = examine(tmp_path, [*GOOD, "x", "\u6f22", *unreachable], cased=False)
    assert diagnosis.numbers["unreachable_pieces"] == len(unreachable)
    assert not_ok(diagnosis)["unreachable"] == "warning"


def encode_with_tokenizers(word: str, pieces: list[str], cased: bool) -> list[str]:
    """Split a text as the `tokenizers` library does."""
    other = tokenizers.Tokenizer(
        tokenizers.models.WordPiece(
            {piece: number for number, piece in enumerate(pieces)}, unk_token="[UNK]", max_input_chars_per_word=200
        )
    )
    other.normalizer = tokenizers.normalizers.BertNormalizer(lowercase=not cased)
    other.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    return other.encode(word, add_special_tokens=False).tokens


@pytest.mark.parametrize("cased", [True, False])
@pytest.mark.parametrize(
    "piece",
    ["bad", "##ed", "##.", ".", "BAD", "##ED", "\u6f22", "##\u6f22", "\u00e9", "##\u00e9", "a.b", "a b", "$", "##$"],
)
def test_reachable_is_what_another_tokenizer_can_give(piece, cased):
    text = f"q{piece.removeprefix('##')}" if piece.startswith("##") else piece
    pieces = ["[UNK]", "q", piece]
    assert is_reachable(piece, cased) == (piece in encode_with_tokenizers(text, pieces, cased))


@pytest.mark.parametrize("cased", [True, False])
def test_learnt_vocabulary_is_all_ok(cased):
    text = "The Cat, the D\u00f3g (and 12 birds) went home: \u6f22\u5b57\u3002 Well-known \u20ac5! " * 3
    counts = Counter(normalize_text(text, cased).split())
    pieces = learn_vocabulary(counts, 90)
    assert [piece for piece in pieces[5:] if not is_reachable(piece, cased) and "unused" not in piece] == []


@pytest.mark.parametrize(("name", "cased"), [("uncased", False), ("cased", True), ("chinese", False)])
def test_published_vocabularies(name, cased):
    if not os.environ.get("KBF_TEST_DATA"):
        pytest.skip("KBF_TEST_DATA is not set")
    path = Path(os.environ["KBF_TEST_DATA"]) / "vocab" / f"{name}_L-12_H-768_A-12.vocab.txt"
    diagnosis = examine_vocabulary(path)
    assert diagnosis.numbers["cased"] is cased
    assert diagnosis.numbers["special_ids"] == {"[PAD]": 0, "[UNK]": 100, "[CLS]": 101, "[SEP]": 102, "[MASK]": 103}
    # The Chinese one has each Han character also behind ##, which no text reaches, and <S> and <T>.
    expected = {"case": "warning", "unreachable": "warning"} if name == "chinese" else {}
    assert not_ok(diagnosis) == expected


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing.txt"):
        examine_vocabulary(tmp_path / "nothing.txt")

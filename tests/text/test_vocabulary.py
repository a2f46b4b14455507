import resource
from functools import partial

import pytest

from keras_bert_flow.checks.diagnose import read_pieces
from keras_bert_flow.conversion.directory_files import check_vocabulary as check_size
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES, check_vocabulary, read_vocabulary, write_vocabulary

PIECES = (*SPECIAL_PIECES, "a", "##b", "中", "\u2028", "\u0085")


def test_vocabulary_reads_what_it_writes(tmp_path):
    write_vocabulary(tmp_path / "vocab.txt", PIECES)
    assert read_vocabulary(tmp_path / "vocab.txt") == PIECES
    assert (tmp_path / "vocab.txt").read_bytes() == "".join(f"{piece}\n" for piece in PIECES).encode()


@pytest.mark.parametrize("ending", ["", "\n", "\r\n"])
def test_vocabulary_keeps_ids_whatever_the_line_ends(tmp_path, ending):
    path = tmp_path / "vocab.txt"
    path.write_bytes(((ending or "\n").join(PIECES) + ending).encode())
    assert read_vocabulary(path) == PIECES


def test_vocabulary_takes_special_pieces_anywhere(tmp_path):
    pieces = ("[PAD]", "[unused0]", "a", "[MASK]", "[SEP]", "[UNK]", "[CLS]")
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    assert read_vocabulary(tmp_path / "vocab.txt") == pieces


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"[PAD]\n[UNK]\n[CLS]\n[MASK]\n", r"without \[SEP\]\."),
        ("\n".join([*SPECIAL_PIECES, "a", "b", "a"]).encode(), r"'a' on lines 6 and 8"),
        ("\n".join([*SPECIAL_PIECES, "", "a"]).encode(), r"line 6"),
        ("\n".join([*SPECIAL_PIECES, "é"]).encode("latin-1"), r"UTF-8.*byte 31"),
        (b"", r"line 1"),
    ],
)
def test_vocabulary_refuses_a_broken_file_in_one_line(tmp_path, data, message):
    (tmp_path / "vocab.txt").write_bytes(data)
    with pytest.raises(ValueError, match=message) as caught:
        read_vocabulary(tmp_path / "vocab.txt")
    assert "vocab.txt" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_vocabulary_refuses_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="kbf vocab"):
        read_vocabulary(tmp_path / "none.txt")


def test_vocabulary_refuses_to_write_a_piece_of_two_lines(tmp_path):
    with pytest.raises(ValueError, match="line 6"):
        write_vocabulary(tmp_path / "vocab.txt", [*SPECIAL_PIECES, "a\nb"])
    assert not (tmp_path / "vocab.txt").exists()


def test_vocabulary_check_accepts_the_special_pieces_alone():
    check_vocabulary(SPECIAL_PIECES)


@pytest.mark.parametrize("content", [b"a\n" * 10_000_000, b"a" * (100 << 20)], ids=["lines", "line"])
@pytest.mark.parametrize("read", [read_vocabulary, read_pieces, partial(check_size, vocabulary_size=3)])
def test_vocabularies_of_any_size_are_refused_in_bounded_memory(tmp_path, content, read):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(ValueError, match="at most 64 MiB and 2,000,000 lines|as many lines as the model has pieces"):
        read(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10  # KiB


def test_sparse_vocabulary_is_refused_by_its_first_bytes(tmp_path):
    with open(tmp_path / "vocab.txt", "wb") as file:
        file.truncate(10 << 30)
    with pytest.raises(ValueError, match="at most 64 MiB"):
        read_vocabulary(tmp_path / "vocab.txt")

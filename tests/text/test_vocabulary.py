import pytest

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

"""Read, check and write `vocab.txt`: one piece per line, the line number is the id."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from keras_bert_flow.files.documents import Read, read_file
from keras_bert_flow.text.corpus.lines import suggest_conversion

VOCABULARY_FILE = "vocab.txt"  # its name in every folder that has one
SPECIAL_PIECES = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
WORD_PIECE: Literal["wordpiece"] = "wordpiece"  # kinds of vocabularies that are learned
BPE: Literal["bpe"] = "bpe"
FEWEST_BYTE_PIECES = len(SPECIAL_PIECES) + 256  # of a byte-level vocabulary
CONTINUATION = "##"
MAX_WORD_CHARACTERS = 200  # longer words are [UNK]: google-research/bert `WordpieceTokenizer`; others use 100
MAX_BYTES = 64 << 20  # of a vocab.txt; ten times the largest published ones, of half a million pieces
MAX_PIECES = 2_000_000


def read_vocabulary(path: str | Path, read: Read = read_file) -> tuple[str, ...]:
    """Read the pieces of a vocabulary file in the order of their ids.

    Lines end in LF or CRLF. Special pieces may be anywhere: the vocabularies of 2018 have them at 0 and 100 to 103.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: not UTF-8, too large, an empty line, a piece twice, or a special piece missing.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"The vocabulary must be a file. Received: {path}. `kbf vocab` learns one.")
    try:
        text = read_vocabulary_bytes(path, read).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"A vocabulary must be UTF-8. Received: {path}, where byte {error.start} is not. "
            f"{suggest_conversion(error.object, str(path))}"
        ) from None
    # Not splitlines(): a piece may be a character that Python treats as a line end, such as U+0085.
    pieces = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")]
    check_vocabulary(pieces, str(path))
    return tuple(pieces)


def read_vocabulary_bytes(path: str | Path, read: Read = read_file) -> bytes:
    """Read a vocabulary file as it is.

    Raises:
        ValueError: it is larger than any vocabulary: `MAX_BYTES` or `MAX_PIECES`.
    """
    data = read(Path(path), MAX_BYTES + 1)
    if len(data) > MAX_BYTES or data.count(b"\n") > MAX_PIECES:
        raise ValueError(
            f"A vocabulary must have at most {MAX_BYTES >> 20} MiB and {MAX_PIECES:,} lines. Received: {path}, with "
            "more. Check the path."
        )
    return data


def write_vocabulary(path: str | Path, pieces: Iterable[str]) -> None:
    """Write the pieces, one per line, as every BERT tool reads them."""
    pieces = tuple(pieces)
    check_vocabulary(pieces, str(path))
    Path(path).write_bytes("".join(f"{piece}\n" for piece in pieces).encode("utf-8"))


def check_vocabulary(pieces: Sequence[str], source: str = "pieces") -> None:
    """Raise ValueError unless ids and pieces are one to one and all special pieces are present."""
    first_id: dict[str, int] = {}
    for piece_id, piece in enumerate(pieces):
        if not piece or "\n" in piece or "\r" in piece:
            raise ValueError(
                f"A vocabulary must have one piece on each line. Received: {source}, line {piece_id + 1}: {piece!r}. "
                "Name an unused place [unused0]."
            )
        if piece in first_id:
            raise ValueError(
                f"A vocabulary must hold each piece once. Received: {source}, {piece!r} on lines "
                f"{first_id[piece] + 1} and {piece_id + 1}. Rename one of them to [unused0]."
            )
        first_id[piece] = piece_id
    missing = [piece for piece in SPECIAL_PIECES if piece not in first_id]
    if missing:
        raise ValueError(
            f"A vocabulary must hold {' '.join(SPECIAL_PIECES)}. Received: {source}, without {' '.join(missing)}. "
            "Put them in place of [unused] lines, or at the top before training."
        )

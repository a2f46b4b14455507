"""Split a context that is too long for one row into overlapping windows."""

from dataclasses import dataclass

import numpy as np

from keras_bert_flow.tasks.answering.squad import ContextQuestion
from keras_bert_flow.text.tokenizers.offsets import find_pieces


@dataclass(frozen=True)
class Window:
    """The part of a context that one row contains.

    Attributes:
        first: position of its first piece in the row.
        starts: int32, (pieces,). Start of each piece in the context as written, in characters.
        ends: int32, (pieces,). End of each piece, likewise.
        is_best: bool, (pieces,). Whether this window has the most context around the piece; answers begin only at such
            pieces.
    """

    first: int
    starts: np.ndarray
    ends: np.ndarray
    is_best: np.ndarray


def require_room(example: ContextQuestion, room: int, sequence_length: int) -> None:
    """Raise ValueError unless a row has room for a piece of the context."""
    if room < 1:
        raise ValueError(
            f"{example.place or example.id}: a row must have room for the question, three special tokens and a piece "
            f"of the context. Received: sequence_length={sequence_length}, {1 - room} too few. Raise it, or lower "
            "`max_question_tokens`."
        )


def cut_windows(count: int, room: int, stride: int) -> list[tuple[int, int, np.ndarray]]:
    """Split `count` pieces into overlapping windows; return begin, end and `is_best` of each."""
    begins = [0]
    while begins[-1] + room < count:
        begins.append(begins[-1] + min(room, stride))
    best = np.full(count, -np.inf)
    owners = np.zeros(count, dtype=np.int64)
    windows = [(begin, min(begin + room, count)) for begin in begins]
    for number, (begin, end) in enumerate(windows):
        # Pieces on the shorter side, plus 0.01 of the window's length: run_squad.py, `_check_is_max_context`.
        place = np.arange(end - begin)
        context = np.minimum(place, place[::-1]) + 0.01 * (end - begin)
        owners[begin:end][context > best[begin:end]] = number
        best[begin:end] = np.maximum(best[begin:end], context)
    return [(begin, end, owners[begin:end] == number) for number, (begin, end) in enumerate(windows)]


def find_gold(example: ContextQuestion, starts: np.ndarray, ends: np.ndarray) -> tuple[int, int] | None:
    """Return the first and last piece of the first gold answer; None if there is none."""
    if not example.answers:
        return None
    answer = example.answers[0]
    return find_pieces(starts, ends, answer.start, answer.start + len(answer.text))

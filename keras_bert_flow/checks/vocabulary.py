"""Examine a vocabulary file, even one that `read_vocabulary` rejects, and find all of its faults at once."""

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from keras_bert_flow.checks.findings import Diagnosis, Finding, grade, judge, percent, share
from keras_bert_flow.text.corpus.lines import suggest_conversion
from keras_bert_flow.text.tokenizers.normalization import normalize_text
from keras_bert_flow.text.tokenizers.wordpiece import PLAIN, WordRules
from keras_bert_flow.text.vocabulary import CONTINUATION, MAX_WORD_CHARACTERS, SPECIAL_PIECES, read_vocabulary_bytes

HISTOGRAMS = {"characters_per_piece": "characters of a piece, ## aside"}
CASED_SHARE = 0.01  # of pieces with capitals or accents: a vocabulary with more is taken to be cased
EXAMPLES = 3
_UNUSED = re.compile(r"\[unused\d+\]")


def read_pieces(path: str | Path) -> tuple[list[str], bool]:
    """Return the lines of a file, unchecked, and whether they are UTF-8.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is too large for a vocabulary.
    """
    data = read_vocabulary_bytes(path)
    try:
        text, is_utf8 = data.decode("utf-8-sig"), True
    except UnicodeDecodeError:
        text, is_utf8 = data.decode("utf-8-sig", errors="replace"), False
    return [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else [], is_utf8


def examine_vocabulary(path: str | Path, cased: bool | None = None, rules: WordRules = PLAIN) -> Diagnosis:
    """Examine the pieces of a `vocab.txt`.

    Args:
        path: the file.
        cased: the tokenizer keeps case; None guesses it from the pieces.
        rules: what else the tokenizer does.
    Raises:
        FileNotFoundError: there is no such file.
    """
    pieces, is_utf8 = read_pieces(path)
    ids = {piece: number for number, piece in reversed(list(enumerate(pieces)))}
    ordinary = [piece for piece in ids if piece and piece not in SPECIAL_PIECES and not _UNUSED.fullmatch(piece)]
    folded = [piece for piece in ordinary if _is_folded_away(piece, rules)]
    was_told = cased is not None
    if cased is None:
        cased = share(len(folded), len(ordinary)) > CASED_SHARE
    unreachable = [piece for piece in ordinary if not is_reachable(piece, cased, rules)]
    characters = {character for piece in ordinary for character in _letters(piece)}
    alone = {character for character in characters if character in ids or CONTINUATION + character in ids}
    numbers: dict[str, Any] = {
        "pieces": len(pieces),
        "cased": cased,
        "special_ids": {piece: ids.get(piece) for piece in SPECIAL_PIECES},
        "unused_pieces": sum(bool(_UNUSED.fullmatch(piece)) for piece in ids),
        "empty_lines": pieces.count(""),
        "repeated_pieces": sum(count - 1 for piece, count in Counter(pieces).items() if piece),
        "continuation_pieces": sum(piece.startswith(CONTINUATION) for piece in ordinary),
        "characters": len(characters),
        "characters_never_alone": len(characters - alone),
        "folded_pieces": len(folded),
        "unreachable_pieces": len(unreachable),
        "characters_per_piece": _count_lengths(ordinary),
    }
    findings = (
        judge("encoding", is_utf8, "UTF-8" if is_utf8 else "not UTF-8", suggest_conversion(b"")),
        judge("size", bool(ordinary), f"{len(pieces):,} pieces", "Learn one with `kbf vocab`."),
        _judge_special(numbers["special_ids"]),
        _judge_lines(pieces),
        _judge_continuations(numbers["continuation_pieces"], len(ordinary)),
        _judge_characters(sorted(characters - alone), len(characters)),
        _judge_case(folded, cased, was_told),
        _judge_unreachable(unreachable, len(ordinary)),
    )
    return Diagnosis(str(path), "vocabulary", findings, numbers, HISTOGRAMS)


def is_reachable(piece: str, cased: bool, rules: WordRules = PLAIN) -> bool:
    """Return whether normalised text can contain a piece; if not, no text is ever encoded with it.

    Pieces that a longer piece always takes the place of are not detected.
    """
    letters = _letters(piece)
    # The letter before a continuation stands for the start of a word: a mark or a Han character would be separated.
    word = "a" + letters if piece.startswith(CONTINUATION) and letters else piece
    words = normalize_text(word, cased, rules.strip_accents, rules.split_han).split()
    return len(word) <= MAX_WORD_CHARACTERS and words == [word]


def _judge_special(special_ids: dict[str, int | None]) -> Finding:
    missing = [piece for piece, number in special_ids.items() if number is None]
    value = ", ".join(f"{piece} {number}" for piece, number in special_ids.items() if number is not None)
    if missing:
        remedy = "Put them in place of [unused] lines, or at the top before training."
        return judge("special pieces", False, f"without {' '.join(missing)}", remedy)
    is_padding_0 = special_ids["[PAD]"] == 0
    remedy = "Move [PAD] to the first line before training: records are padded with zeros."
    return judge("special pieces", "ok" if is_padding_0 else "warning", f"ids {value}", remedy)


def _judge_lines(pieces: Sequence[str]) -> Finding:
    places: dict[str, list[int]] = {}
    for number, piece in enumerate(pieces, start=1):
        places.setdefault(piece, []).append(number)
    empty = places.pop("", [])
    repeated = {piece: lines for piece, lines in places.items() if len(lines) > 1}
    faults = []
    if empty:
        faults.append(f"{len(empty):,} empty, such as line {empty[0]}")
    if repeated:
        shown = [f"{piece!r} on lines {', '.join(map(str, lines[:EXAMPLES]))}" for piece, lines in repeated.items()]
        faults.append(f"{len(repeated):,} pieces twice or more: {'; '.join(shown[:EXAMPLES])}")
    return judge(
        "lines",
        not faults,
        "; ".join(faults) or "one piece each, none twice",
        "Give these lines a name of their own, such as [unused0]: removing them moves every id below.",
    )


def _judge_continuations(continuations: int, pieces: int) -> Finding:
    value = f"{percent(share(continuations, pieces))} of pieces begin with {CONTINUATION}"
    remedy = f"Is it a WordPiece vocabulary? Without {CONTINUATION} pieces every word not in it is unknown."
    return judge("continuations", "ok" if continuations else "warning", value, remedy)


def _judge_characters(never_alone: Sequence[str], characters: int) -> Finding:
    missing = share(len(never_alone), characters)
    value = f"{characters:,} different"
    if never_alone:
        shown = " ".join(never_alone[:EXAMPLES])
        value += f", {len(never_alone):,} of them only inside longer pieces, such as {shown}"
    remedy = "Add each as a piece, alone or behind ##: a word with one of them is unknown as a whole."
    return judge("characters", grade(missing, 0.05), value, remedy)


def _judge_case(folded: Sequence[str], cased: bool, was_told: bool) -> Finding:
    name = ("cased" if cased else "uncased") + ("" if was_told else ", a guess")
    value = f"{name}; {len(folded):,} pieces with capitals or accents"
    if not cased and folded:
        value += f", such as {' '.join(folded[:EXAMPLES])}"
    if cased and not folded:
        return judge("case", "warning", value, "Is it an uncased one? Then give --uncased, here and in training.")
    remedy = "Give --cased if it is a cased one; else lower-case the text that it is learnt from."
    return judge("case", "warning" if folded and not cased else "ok", value, remedy)


def _judge_unreachable(unreachable: Sequence[str], pieces: int) -> Finding:
    wasted = share(len(unreachable), pieces)
    value = f"{len(unreachable):,} pieces ({percent(wasted)}) that no text is encoded with"
    if unreachable:
        value += f", such as {' '.join(map(ascii, unreachable[:EXAMPLES]))}"
    remedy = "Harmless, but each is a row of weights that never learns; `kbf vocab` learns none of these."
    return judge("unreachable", grade(wasted, 0.05), value, remedy)


def _is_folded_away(piece: str, rules: WordRules) -> bool:
    """Return whether an uncased tokenizer changes a piece that a cased one leaves."""
    letters = _letters(piece)
    return normalize_text(letters, True) != normalize_text(letters, False, rules.strip_accents)


def _letters(piece: str) -> str:
    return piece.removeprefix(CONTINUATION) or piece  # "##" itself is two characters


def _count_lengths(pieces: Sequence[str]) -> list[list[int]]:
    counts = Counter(len(_letters(piece)) for piece in pieces)
    return [[length, length, counts[length]] for length in sorted(counts)]

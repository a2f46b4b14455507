"""Count the rows of a file that are rows of the training file too: the same texts, with the same label or another."""

import hashlib
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Repeats:
    """Rows of a file whose texts are those of a training row.

    Attributes:
        rows: all rows of the file.
        same_label: repeated rows with a label that the texts have in training.
        other_label: repeated rows whose label the texts do not have there.
    """

    rows: int
    same_label: int
    other_label: int

    def describe(self, name: str) -> str:
        """Return one line about the file, or "" if no row is repeated."""
        repeated = self.same_label + self.other_label
        if not repeated:
            return ""
        return (
            f"{name}: {repeated:,} of {self.rows:,} rows have the texts of a training row, {self.same_label:,} with "
            f"the label that they have there and {self.other_label:,} with another. Scores on them are not scores on "
            "unseen texts. Texts are compared without case and blanks."
        )


def count_repeats(training: Sequence[Any], examples: Sequence[Any]) -> Repeats:
    """Count the examples whose texts are those of a training example."""
    known = defaultdict(set)
    for example in training:
        known[identify(example)].add(example.gold)
    found = [(example.gold, known[key]) for example in examples if (key := identify(example)) in known]
    same = sum(gold in golds for gold, golds in found)
    return Repeats(len(examples), same, len(found) - same)


def identify(example: Any) -> bytes:
    """Return a digest of the texts of an example, without case, blanks and Unicode form: equal for the same texts."""
    parts = list(_flatten(example.inputs.values()))
    folded = [" ".join(unicodedata.normalize("NFC", part.casefold()).split()) for part in parts]
    return hashlib.blake2b("\0".join(folded).encode(), digest_size=16).digest()


def _flatten(values: Iterable[Any]) -> Iterable[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        else:
            yield from value

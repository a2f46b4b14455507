"""Compare the shares of classes in two files of a task."""

from collections import Counter
from collections.abc import Sequence

LEAST_DIFFERENCE = 0.05  # of a share
STANDARD_ERRORS = 4  # one class in 16,000 differs as much by chance
SHOWN = 3


def describe_shares(name: str, training: Sequence[str], others: Sequence[str]) -> str:
    """Return one line about classes whose shares in a file are not those of the training file, or "".

    Scores on such a file are not those on texts like the training file's, and a classifier that has learnt the shares
    of one predicts the classes of the other too often or too rarely.

    Args:
        name: of the file, as in `dev`.
        training, others: names of classes, one for each label.
    """
    if not training or not others:
        return ""
    first, second = Counter(training), Counter(others)
    differing = []
    for label in first.keys() | second.keys():
        shares = first[label] / len(training), second[label] / len(others)
        common = (first[label] + second[label]) / (len(training) + len(others))
        error = (common * (1 - common) * (1 / len(training) + 1 / len(others))) ** 0.5
        difference = abs(shares[0] - shares[1])
        if difference > max(LEAST_DIFFERENCE, STANDARD_ERRORS * error):
            differing.append((difference, label, shares))
    if not differing:
        return ""
    shown = sorted(differing, key=lambda item: (-item[0], item[1]))[:SHOWN]
    parts = [f"{ascii(label)} {100 * here:.0f} % for {100 * there:.0f} %" for _, label, (there, here) in shown]
    more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
    return (
        f"{name}: the shares of classes are not those of the training file: {', '.join(parts)} there{more}. Scores on "
        "it are of another mix of classes."
    )

"""Findings of an examination, as text or JSON, and the streaming statistics that they rest on."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import numpy as np

from keras_bert_flow.console.terminal import JOINERS, escape_controls
from keras_bert_flow.text.tokenizers.tokenizer import CASED, advise_unknown, lost_share

Verdict = Literal["ok", "warning", "error"]
VERDICTS: tuple[Verdict, ...] = ("ok", "warning", "error")  # from good to bad
BARS = 8  # of a histogram of equal intervals
BAR_CHARACTERS = 40


@dataclass(frozen=True)
class Finding:
    """One line of the diagnosis.

    Attributes:
        verdict: `ok`, `warning` (works, at a cost) or `error` (do not use it).
        what: name of the property examined.
        value: what was found, as text.
        remedy: what to do; empty if the verdict is `ok`.
    """

    verdict: Verdict
    what: str
    value: str
    remedy: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """All findings about one path.

    Attributes:
        path: the path examined.
        kind: `corpus`, `vocabulary` or `records`.
        findings: in reading order.
        numbers: the same for programs, JSON-like; a histogram is a list of [lowest, highest, count].
        histograms: names of the numbers to draw, with their titles.
    """

    path: str
    kind: str
    findings: tuple[Finding, ...]
    numbers: Mapping[str, Any]
    histograms: Mapping[str, str]

    @property
    def verdict(self) -> Verdict:
        return max((finding.verdict for finding in self.findings), key=VERDICTS.index, default="ok")


def judge(what: str, verdict: Verdict | bool, value: str, remedy: str) -> Finding:
    """Make a finding, without its remedy if the verdict is `ok`; True means `ok`, False `error`."""
    if isinstance(verdict, bool):
        verdict = "ok" if verdict else "error"
    return Finding(verdict, what, value, "" if verdict == "ok" else remedy)


def grade(number: float, warning_over: float, error_over: float = float("inf")) -> Verdict:
    """Convert a number to a verdict; lower is better."""
    return "error" if number > error_over else "warning" if number > warning_over else "ok"


def share(part: float, whole: float) -> float:
    """Divide, with 0 as the result if the whole is 0."""
    return part / whole if whole else 0.0


def percent(value: float) -> str:
    """Format a share with two decimals; only exactly 0 is shown as 0."""
    return "under 0.01 %" if 0 < value < 0.0001 else f"{100 * value:.2f} %"


def judge_lost(counters: Mapping[str, Any]) -> list[Finding]:
    """Judge the characters that a tokenizer loses, by the counters of `text.tokenizers.tokenizer.LOST`."""
    findings = []
    for what, name, remedy, does in (
        ("unknown characters", "unknown_characters", advise_unknown(counters), "become [UNK]"),
        ("stripped characters", "stripped_characters", CASED, "lose a mark that is part of the letter"),
    ):
        lost = lost_share(counters, name)
        value = f"{percent(lost)} of {counters.get('characters', 0):,} characters {does}"
        findings.append(judge(what, grade(lost, 0.01, 0.1), value, remedy))
    return findings


def as_text(diagnosis: Diagnosis) -> str:
    """Format a line for each finding, its remedy below it, and the histograms."""
    width = max(len(finding.what) for finding in diagnosis.findings)
    lines = [f"{diagnosis.kind}: {diagnosis.path}", ""]
    for finding in diagnosis.findings:
        lines.append(f"{finding.verdict:7}  {finding.what:{width}}  {finding.value}")
        if finding.remedy:
            lines.append(f"{'':7}  {'':{width}}  -> {finding.remedy}")
    for name, title in diagnosis.histograms.items():
        lines += ["", title, *draw_histogram(diagnosis.numbers[name])]
    counts = [sum(finding.verdict == verdict for finding in diagnosis.findings) for verdict in VERDICTS]
    lines += ["", f"{counts[0]} ok, {counts[1]} warning, {counts[2]} error"]
    return "\n".join(escape_controls(line, JOINERS) for line in lines)


def as_json(diagnosis: Diagnosis) -> str:
    """Format one JSON object: path, kind, verdict, findings and numbers."""
    values = {
        "path": diagnosis.path,
        "kind": diagnosis.kind,
        "verdict": diagnosis.verdict,
        "findings": [asdict(finding) for finding in diagnosis.findings],
        "numbers": dict(diagnosis.numbers),
    }
    return json.dumps(values, indent=1, ensure_ascii=False)


def draw_histogram(rows: Sequence[Sequence[int]]) -> list[str]:
    """Draw rows of [lowest, highest, count], with a bar each."""
    most = max((count for _, _, count in rows), default=0)
    lines = []
    for low, high, count in rows:
        name = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        bar = "#" * round(BAR_CHARACTERS * share(count, most))
        lines.append(f"  {name:>20}  {count:>12,}  {bar}".rstrip())
    return lines or ["  nothing"]


# Streaming statistics in bounded memory: lengths, repeated items, and the range of shares by chance.

SIGMAS = 5.0  # a range is exceeded by chance once in 1.7 million
MOST_REMEMBERED = 500_000  # digests, about 60 MB


@dataclass
class Lengths:
    """Histogram of lengths in buckets of doubling width: 0, 1, 2, 3 to 4, 5 to 8 and so on."""

    count: int = field(init=False, default=0)
    total: int = field(init=False, default=0)
    longest: int = field(init=False, default=0)
    _buckets: Counter = field(init=False, default_factory=Counter)

    def add(self, length: int) -> None:
        self._buckets[(length - 1).bit_length() if length else -1] += 1
        self.count += 1
        self.total += length
        self.longest = max(self.longest, length)

    def rows(self) -> list[list[int]]:
        """Return [lowest, highest, count] of each bucket, from the first to the last that is not empty."""
        if not self._buckets:
            return []
        rows = []
        for bucket in range(min(self._buckets), max(self._buckets) + 1):
            low, high = (2 ** (bucket - 1) + 1, 2**bucket) if bucket > 0 else (bucket + 1, bucket + 1)
            rows.append([low, high, self._buckets[bucket]])
        return rows


@dataclass
class Repeats:
    """Share of repeated items: exact up to `limit` different ones, then an estimate.

    Past the limit, only items whose digest is divisible by 2, then by 4 and so on are tracked: a random choice of
    items, each with all of its copies, the same for any order of the stream. Source: Wegman's adaptive sampling, in
    Flajolet 1990, "On adaptive sampling".
    """

    limit: int = MOST_REMEMBERED
    _counts: dict[int, int] = field(init=False, default_factory=dict)
    _step: int = field(init=False, default=1)

    def add(self, item: bytes) -> None:
        """Count an item if its digest is one of those that are kept; keep fewer when they are too many."""
        digest = int.from_bytes(hashlib.blake2b(item, digest_size=8).digest(), "little")
        if digest % self._step:
            return
        self._counts[digest] = self._counts.get(digest, 0) + 1
        while len(self._counts) > self.limit:
            self._step *= 2
            self._counts = {kept: count for kept, count in self._counts.items() if kept % self._step == 0}

    @property
    def is_exact(self) -> bool:
        return self._step == 1

    @property
    def repeated_share(self) -> float:
        followed = sum(self._counts.values())
        return 1 - len(self._counts) / followed if followed else 0.0


def chance_range(probability: float, draws: float) -> tuple[float, float]:
    """Return the lowest and highest share in this many independent draws, exceeded once in 1.7 million."""
    draws = round(draws)
    if not draws:
        return 0.0, 1.0
    from scipy.stats import binom, norm  # takes half of the start-up time of any command

    tail = norm.sf(SIGMAS)
    low, high = binom.ppf(tail, draws, probability), binom.isf(tail, draws, probability)
    return max(0.0, float(low)) / draws, float(high) / draws  # a quantile of probability 0 is -1


def even_histogram(counts: np.ndarray) -> list[list[int]]:
    """Sum counts of the numbers 0, 1, 2, ... into equal intervals above 0, as [lowest, highest, count]."""
    highest = len(counts) - 1
    width = max(1, -(-highest // BARS))
    starts = range(1, highest + 1, width)
    return [
        [low, min(low + width - 1, highest), int(counts[low : min(low + width, highest + 1)].sum())] for low in starts
    ]

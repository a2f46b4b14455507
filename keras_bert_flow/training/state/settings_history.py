"""Remember the settings that the first steps of a run were made with, where they were changed on the way."""

from collections.abc import Mapping, Sequence
from typing import Any

Settings = Mapping[str, Any]
Span = list  # [the step up to which they held, the settings]


def add_change(history: Sequence[Span], step: int, before: Settings, now: Settings) -> list[Span]:
    """Return a history with the settings that held up to a step, where others hold from there on."""
    return [*history, *([[step, dict(before)]] if dict(before) != dict(now) and step else [])]


def list_spans(history: Sequence[Span], now: Settings, names: Sequence[str], last_step: int) -> list[Span]:
    """Say up to which step which settings held; neighbours that are alike are one span.

    Args:
        history: what `add_change` made.
        now: the settings after it.
        names: settings of interest.
        last_step: the end of the last span.
    """
    spans: list[Span] = []
    for until_step, settings in (*history, (last_step, now)):
        step, values = min(until_step, last_step), {name: settings[name] for name in names}
        if spans and spans[-1][1] == values:
            spans[-1][0] = step
        elif step > (spans[-1][0] if spans else 0):
            spans.append([step, values])
    return spans


def list_earlier(history: Sequence[Span], now: Settings, names: Sequence[str], last_step: int) -> list[Span]:
    """Return the spans in which other settings held than at the end; none where nothing was changed on the way."""
    spans = list_spans(history, now, names, last_step)
    return spans[:-1] if spans and spans[-1][1] == {name: now[name] for name in names} else spans

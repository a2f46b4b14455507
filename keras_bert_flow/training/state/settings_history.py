"""History of the settings that were changed during a run."""

from collections.abc import Mapping, Sequence
from typing import Any

Settings = Mapping[str, Any]
Span = list  # [last step with these settings, settings]


def add_change(history: Sequence[Span], step: int, before: Settings, now: Settings) -> list[Span]:
    """Return a history with the settings up to a step appended, if they change there."""
    return [*history, *([[step, dict(before)]] if dict(before) != dict(now) and step else [])]


def list_spans(history: Sequence[Span], now: Settings, names: Sequence[str], last_step: int) -> list[Span]:
    """Return the spans of steps with the same settings, in order.

    Args:
        history: output of `add_change`.
        now: the current settings.
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
    """Return the spans with other settings than the current ones; empty if the settings were never changed."""
    spans = list_spans(history, now, names, last_step)
    return spans[:-1] if spans and spans[-1][1] == {name: now[name] for name in names} else spans

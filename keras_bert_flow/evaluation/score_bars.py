"""Bar chart of the result: the mean main metric of each model, with its interval over dev examples and seeds."""

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keras_bert_flow.evaluation.drawing import COLOURS, GREY, INK, draw_figure
from keras_bert_flow.evaluation.headings import SHARE, format_metric, main_metric, name_models, shown_metrics
from keras_bert_flow.evaluation.page import figure
from keras_bert_flow.evaluation.summary import name_variation, tells_little
from keras_bert_flow.terminal import JOINERS, escape_controls

ERRORS = 2  # standard errors to each side, about 95 %
NAME_CHARACTERS = 26  # in a line beside its bar
WIDTH, BAR_INCHES, AXIS_INCHES = 6.0, 0.42, 0.65


@dataclass(frozen=True)
class _Bar:
    name: str
    value: float  # as displayed: a share in percent
    error: float  # half of the interval; 0.0 without one
    text: str
    is_main: bool


def describe_bars(results: Mapping[str, Any]) -> list[str]:
    """Return the figure; empty without matplotlib, whose absence leaves the table of the same numbers."""
    heading = shown_metrics(results)[main_metric(results)]
    bars = _list_bars(results, heading)
    have_interval = any(bar.error for bar in bars)
    interval = f" The lines are ± {ERRORS} standard errors over {name_variation(results)}." * have_interval
    caption = f"Mean {heading.removesuffix(SHARE)} of each model.{interval}"
    alternative = f"{caption} {'; '.join(f'{bar.name}: {_write_interval(bar, heading)}' for bar in bars)}."
    height = AXIS_INCHES + BAR_INCHES * len(bars)

    def draw(axes: Any) -> None:
        for place, bar in enumerate(bars):
            axes.barh(place, bar.value, height=0.62, color=COLOURS[0] if bar.is_main else GREY)
            if bar.error:
                axes.errorbar(bar.value, place, xerr=bar.error, color=INK, capsize=3, linewidth=1.1)
            side = -1 if bar.value < 0 else 1
            axes.annotate(
                *(bar.text, (bar.value + side * bar.error, place), (side * 5, 0)),
                textcoords="offset points",
                va="center",
                ha="left" if side > 0 else "right",
            )
        names = ["\n".join(textwrap.wrap(bar.name, NAME_CHARACTERS)) for bar in bars]
        axes.set_yticks(range(len(bars)), names)
        axes.invert_yaxis()  # from the top, as in the table
        axes.set_xlabel(heading)
        axes.margins(x=0.14)
        axes.set_xlim(*((0, None) if min(bar.value - bar.error for bar in bars) >= 0 else (None, None)))
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="x", color=INK, alpha=0.12, linewidth=0.6)
        axes.set_axisbelow(True)

    try:
        return [figure(draw_figure(draw, (WIDTH, height), "scores", alternative), caption, "bars")]
    except ImportError:
        return []


def _list_bars(results: Mapping[str, Any], heading: str) -> list[_Bar]:
    factor, metric = 100 if heading.endswith(SHARE) else 1, main_metric(results)
    errors = {} if tells_little(results) else results.get("standard_errors", {})  # an earlier version has none
    bars = []
    for model, name in name_models(results).items():
        mean = results["models"][model][metric]["mean"]
        error = ERRORS * factor * errors.get(model, 0.0)
        name = escape_controls(name, JOINERS)
        bars.append(_Bar(name, factor * mean, error, format_metric(mean, heading), model == "pretrained"))
    return bars


def _write_interval(bar: _Bar, heading: str) -> str:
    factor = 100 if heading.endswith(SHARE) else 1
    ends = (format_metric((bar.value + side * bar.error) / factor, heading) for side in (-1, 1))
    return bar.text + (f" ({' to '.join(ends)})" if bar.error else "")

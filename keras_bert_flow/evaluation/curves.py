"""Figures as inline SVG: losses over steps, and scores as bars with intervals."""

import io
import math
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

from keras_bert_flow.console.terminal import JOINERS, escape_controls
from keras_bert_flow.evaluation.page import figure
from keras_bert_flow.evaluation.summary import (
    MODEL_NAMES,
    SHARE,
    format_metric,
    main_metric,
    name_models,
    name_variation,
    tells_little,
)

# Draw figures with matplotlib, as inline SVG in the page's text colour.

INK = "#010203"  # a unique colour, replaced by the page's text colour
# Visible on white and on near-black: contrast of at least 3 with both (WCAG 2.1, 1.4.11).
COLOURS = ("#3a80c9", "#d0691b", "#2a9262", "#b5518f", "#8a7a2f", "#6f6fd0")
GREY = "#80868f"
_INKED = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")


def draw_figure(draw: Callable[[Any], None], inches: tuple[float, float], salt: str, alternative: str) -> str:
    """Return a figure as a self-contained `<svg>` element that reads well on light and on dark pages.

    Args:
        draw: draws on the axes of matplotlib that it is given.
        inches: width and height.
        salt: makes the ids of this drawing differ from those of others on the page.
        alternative: the text that screen readers read instead.
    Raises:
        ImportError: matplotlib, of the extra `plots`, is not installed.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    settings = {"svg.hashsalt": salt, "svg.fonttype": "none", "font.size": 9.5, "text.parse_math": False}
    with rc_context({**settings, **dict.fromkeys(_INKED, INK)}):
        figure = Figure(figsize=inches, layout="constrained")
        axes = figure.subplots()
        draw(axes)
        axes.spines[["top", "right"]].set_visible(False)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True)
    svg = file.getvalue()
    svg = svg[svg.index("<svg") :]  # without the XML and DOCTYPE lines, which HTML does not allow
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)  # the date, and addresses on the web
    svg = re.sub(r' xmlns(:xlink)?="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{salt}-", svg)
    named = f'<svg role="img" aria-label="{escape(alternative)}"'
    return named + svg.removeprefix("<svg").replace(INK, "currentColor").strip()


STYLES = ("-", "--", "-.", ":")
MEASURED = ("dev_", "held_out_")  # begins the name of what is measured at a step; the rest are means over steps
MAX_POINTS = 1000  # more than the pixels of a figure, and the page stays small
FIGURE_INCHES = (7.6, 3.1)


@dataclass(frozen=True)
class Series:
    """One line of a figure. Lines of one group share a colour and an entry of the legend."""

    label: str
    group: str
    steps: tuple[float, ...]
    values: tuple[float, ...]  # nan leaves a gap


@dataclass(frozen=True)
class Panel:
    """One figure."""

    title: str
    series: tuple[Series, ...]
    x_label: str = "steps"
    y_label: str = "loss, nats"
    is_log: bool = False  # whether x is on a logarithmic scale


def log_panels(curves: Mapping[str, Sequence[Mapping[str, Any]]], score: str | None = None) -> list[Panel]:
    """Group log lines into figures: of losses, and of the dev score of fine-tuning by epoch.

    Args:
        curves: name → parsed lines of a `log.jsonl`, each with `step` and some of the losses: every field whose name
            ends in `loss`. A name of `<model>/<seed>`, such as `pretrained/1`, is a fine-tuning run, whose field `loss`
            is shown in one figure of all of them, and the dev score in another; any other name has a figure of its own,
            with every loss.
        score: the main metric of the task; None shows no scores.
    """
    panels, runs, scores = [], [], []
    for name, lines in curves.items():
        name = escape_controls(name)
        model, slash, seed = name.rpartition("/")
        if slash:
            group = MODEL_NAMES.get(model, model)
            runs.append(_make_series(lines, "loss", f"{group}, seed {seed}", group))
            scores.append(_make_series(lines, f"dev_{score}", f"{group}, seed {seed}", group))
        else:
            fields = dict.fromkeys(field for line in lines for field in line if field.endswith("loss"))
            series = [
                _make_series(lines, field, escape_controls(field).replace("_", " "), escape_controls(field))
                for field in fields
            ]
            title = "Pre-training" if name == "pretraining" else name
            panels.append(Panel(title, tuple(series)))
    panels.append(Panel("Fine-tuning", tuple(runs)))
    panels.append(Panel("Fine-tuning, by epoch", tuple(scores), y_label=f"dev {score}".replace("_", " ")))
    shown = [replace(panel, series=tuple(line for line in panel.series if line.steps)) for panel in panels]
    return [panel for panel in shown if panel.series]


def draw_panel(panel: Panel, salt: str) -> str:
    """Draw a figure as a self-contained `<svg>` element.

    Args:
        panel: what to draw.
        salt: makes the ids of this drawing differ from those of others on the page.
    Raises:
        ImportError: matplotlib, of the extra `plots`, is not installed.
    """

    def draw(axes: Any) -> None:
        _draw_lines(axes, panel)
        axes.set(title=panel.title, xlabel=panel.x_label, ylabel=panel.y_label)
        if panel.is_log:
            ticks = sorted({step for series in panel.series for step in series.steps})
            axes.set_xscale("log")
            axes.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
            axes.minorticks_off()
        axes.grid(color=INK, alpha=0.12, linewidth=0.6)
        axes.legend(frameon=False)

    ends = (f"{series.label} from {series.values[0]:.4g} to {series.values[-1]:.4g}" for series in panel.series)
    alternative = f"{panel.title}, {panel.y_label} over {panel.x_label}: {'; '.join(ends)}."
    return draw_figure(draw, FIGURE_INCHES, salt, alternative)


def describe_panel(panel: Panel) -> str:
    """Return the caption of a figure: its last values, or what its lines are if a group has several."""
    if len({series.group for series in panel.series}) < len(panel.series):
        return f"{panel.title}: one line a seed."
    lasts = (f"{series.label} {series.values[-1]:.4f} at step {series.steps[-1]:,.0f}" for series in panel.series)
    return f"{panel.title}: {'; '.join(lasts)}."


def last_values(panels: Sequence[Panel]) -> list[list[str]]:
    """Return figure, line, last step and last value of every line, for reports without plots."""
    return [
        [panel.title, series.label, f"{series.steps[-1]:,.0f}", f"{series.values[-1]:.4f}"]
        for panel in panels
        for series in panel.series
    ]


def _make_series(lines: Sequence[Mapping[str, Any]], field: str, label: str, group: str) -> Series:
    """Return a field of the log as a line: as measured, or means over intervals of about the same length.

    A mean is over the steps since the line of the log before. An evaluation between two borders of the log splits their
    interval into short ones, whose means scatter more, down to that of a single batch: a spike at each epoch. Short
    intervals are joined until they are as long as the longest, which restores the borders of the log.
    """
    if field.startswith(MEASURED):
        points = [(line["step"], line[field]) for line in lines if line.get(field) is not None]
    else:
        intervals, before = [], 0
        for line in lines:
            steps, before = line["step"] - before, line["step"]
            if steps > 0 and line.get(field) is not None:
                intervals.append((line["step"], steps, line[field]))
        longest = max((steps for _, steps, _ in intervals), default=0)
        joined: list[tuple[float, float, float]] = []  # last step, steps, sum
        for step, steps, value in intervals:
            is_last_short = step == intervals[-1][0] and 2 * steps <= longest
            if joined and (joined[-1][1] < longest or is_last_short):
                _, earlier, total = joined.pop()
                joined.append((step, earlier + steps, total + steps * value))
            else:
                joined.append((step, steps, steps * value))
        points = [(step, total / steps) for step, steps, total in joined]
    stride = math.ceil(len(points) / MAX_POINTS) or 1
    points = points[::-1][::stride][::-1]  # counted from the end, to keep the last
    return Series(label, group, tuple(step for step, _ in points), tuple(value for _, value in points))


def _draw_lines(axes: Any, panel: Panel) -> None:
    groups = list(dict.fromkeys(series.group for series in panel.series))
    shown = set()
    for series in panel.series:
        place = groups.index(series.group)
        axes.plot(
            series.steps,
            [value if math.isfinite(value) else math.nan for value in series.values],
            color=COLOURS[place % len(COLOURS)],
            linestyle=STYLES[place % len(STYLES)],
            linewidth=1.4,
            marker="." if len(series.steps) <= 30 else None,  # a single point draws no line
            label="_" if series.group in shown else series.group.replace("_", " "),
        )
        shown.add(series.group)


# Bar chart of the result: the mean main metric of each model, with its interval over dev examples and seeds.

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
    _, heading = main_metric(results)
    bars = _list_bars(results, heading)
    have_interval = any(bar.error for bar in bars)
    interval = f" The lines are ± {ERRORS} standard errors over {name_variation(results)}." * have_interval
    caption = f"Mean {heading.removesuffix(SHARE)} of each model.{interval}"
    factor, described = 100 if heading.endswith(SHARE) else 1, []
    for bar in bars:
        ends = (format_metric((bar.value + side * bar.error) / factor, heading) for side in (-1, 1))
        described.append(f"{bar.name}: {bar.text}" + (f" ({' to '.join(ends)})" if bar.error else ""))
    alternative = f"{caption} {'; '.join(described)}."
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
    factor, (metric, _) = 100 if heading.endswith(SHARE) else 1, main_metric(results)
    errors = {} if tells_little(results) else results.get("standard_errors", {})  # an earlier version has none
    bars = []
    for model, name in name_models(results).items():
        mean = results["models"][model][metric]["mean"]
        error = ERRORS * factor * errors.get(model, 0.0)
        name = escape_controls(name, JOINERS)
        bars.append(_Bar(name, factor * mean, error, format_metric(mean, heading), model == "pretrained"))
    return bars

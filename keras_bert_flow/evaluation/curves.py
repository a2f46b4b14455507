"""Plot the losses of pre-training and fine-tuning over steps, as SVG for a page."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keras_bert_flow.evaluation.drawing import COLOURS, INK, draw_figure
from keras_bert_flow.evaluation.headings import MODEL_NAMES
from keras_bert_flow.terminal import escape_controls

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
            panels.append(Panel(title, tuple(filter(_has_points, series))))
    panels.append(Panel("Fine-tuning", tuple(filter(_has_points, runs))))
    label = f"dev {score}".replace("_", " ")
    panels.append(Panel("Fine-tuning, by epoch", tuple(filter(_has_points, scores)), y_label=label))
    return [panel for panel in panels if panel.series]


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

    return draw_figure(draw, FIGURE_INCHES, salt, _describe_lines(panel))


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


def _describe_lines(panel: Panel) -> str:
    """Return the text alternative of a figure: where each line begins and ends."""
    ends = (f"{series.label} from {series.values[0]:.4g} to {series.values[-1]:.4g}" for series in panel.series)
    return f"{panel.title}, {panel.y_label} over {panel.x_label}: {'; '.join(ends)}."


def _make_series(lines: Sequence[Mapping[str, Any]], field: str, label: str, group: str) -> Series:
    points = [(line["step"], line[field]) for line in lines if line.get(field) is not None]
    if not field.startswith(MEASURED):
        points = _even_out(lines, field)
    stride = math.ceil(len(points) / MAX_POINTS) or 1
    points = points[::-1][::stride][::-1]  # counted from the end, to keep the last
    return Series(label, group, tuple(step for step, _ in points), tuple(value for _, value in points))


def _even_out(lines: Sequence[Mapping[str, Any]], field: str) -> list[tuple[float, float]]:
    """Return (last step, mean) of intervals of about the same length.

    A line is the mean over the steps since the line before. An evaluation between two borders of the log splits their
    interval into short ones, whose means scatter more, down to that of a single batch: a spike at each epoch. Short
    intervals are joined until they are as long as the longest, which restores the borders of the log.
    """
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
    return [(step, total / steps) for step, steps, total in joined]


def _has_points(series: Series) -> bool:
    return bool(series.steps)


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

"""Self-contained HTML pages, where text is escaped and styles are inline, and the costs of stages."""

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape as escape_html
from pathlib import Path
from typing import Any

from keras_bert_flow.console.terminal import JOINERS, escape_controls
from keras_bert_flow.results.manifest import read_costs, read_manifest

# Colours are defined for light and for dark mode; figures use `currentColor`.
STYLE = """
:root { color-scheme: light dark; --ink: #1d2127; --soft: #5b6470; --line: #d9dde3; --paper: #fff; --tint: #f4f6f8;
  --shade: 44, 110, 180; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --soft: #9aa4b1; --line: #363c45; --paper: #16181c;
  --tint: #1f2329; --shade: 90, 155, 225; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 64rem; padding: 2.5rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .6rem; }
h2 { font-size: 1.1rem; margin: 2.6rem 0 .7rem; padding-bottom: .3rem; border-bottom: 1px solid var(--line); }
p { margin: .5rem 0; max-width: 46rem; }
.verdict { font-size: 1.1rem; }
.note, figcaption { color: var(--soft); font-size: .88rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; margin: .4rem 0; font-variant-numeric: tabular-nums; }
th, td { padding: .32rem 1.1rem .32rem 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
thead th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
tbody th { font-weight: 500; min-width: 11rem; }
.number { text-align: right; white-space: nowrap; padding: .32rem 0 .32rem 1.2rem; }
thead .number { white-space: normal; }
.number + :not(.number) { padding-left: 1.4rem; }
.cell { text-align: right; padding: .32rem .8rem; }
.text { overflow-wrap: anywhere; min-width: 16rem; }
figure { margin: 1rem 0; }
figure svg { display: block; width: 100%; height: auto; }
.bars svg { max-width: 40rem; }
figure svg text { font-family: inherit !important; }
code, pre { font: .85rem/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; overflow-wrap: anywhere; }
pre { background: var(--tint); padding: 1rem; margin: .6rem 0; border-radius: 6px; white-space: pre-wrap; }
summary { cursor: pointer; }
@media (max-width: 40rem) {
  body { padding: 1.5rem .9rem 3rem; }
  table { font-size: .8rem; }
  th, td, .number, .cell, .number + :not(.number) { padding-left: 0; padding-right: .35rem; }
  .number { white-space: normal; } tbody th { min-width: 5rem; } .text { min-width: 9rem; }
  figure:not(.bars) { overflow-x: auto; } figure:not(.bars) svg { min-width: 34rem; } }
@media print { :root { color-scheme: light; --ink: #000; --soft: #444; --line: #bbb; --paper: #fff; --tint: #f4f4f4;
    --shade: 44, 110, 180; }
  body { max-width: none; padding: 0; font-size: 10pt; }
  h2 { break-after: avoid; } tr, figure { break-inside: avoid; } .wide { overflow: visible; }
  table { font-size: 8.5pt; } .text { min-width: 9rem; } .number { padding-left: .8rem; }
  details::details-content { content-visibility: visible; height: auto; } }
"""


def escape(text: str) -> str:
    """Escape text for HTML, with control and invisible characters as escapes."""
    return escape_html(escape_controls(text, "\t\n" + JOINERS))


def page(title: str, sections: Iterable[str]) -> str:
    """Return the HTML document, without empty sections."""
    body = "\n".join(section for section in sections if section)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<main>\n<h1>{escape(title)}</h1>\n{body}\n</main>\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    """Return a titled section; empty if no part has content."""
    content = "\n".join(part for part in parts if part)
    return f"<section>\n<h2>{escape(title)}</h2>\n{content}\n</section>" if content else ""


def paragraph(text: str, kind: str = "") -> str:
    return f"<p{_css(kind)}>{escape(text)}</p>" if text else ""


def table(header: Sequence[str], rows: Sequence[Sequence[str]], kinds: Sequence[str] | None = None) -> str:
    """Return a table whose first column names the rows; empty if there are no rows.

    Args:
        header: name of each column.
        rows: cells, as text.
        kinds: kind of each column: `number`, `text`, `code` or nothing; by default all but the first are numbers.
    """
    if not rows:
        return ""
    kinds = kinds or ["", *["number"] * (len(header) - 1)]
    head = "".join(f'<th scope="col"{_css(kind)}>{escape(name)}</th>' for name, kind in zip(header, kinds, strict=True))
    lines = []
    for row in rows:
        cells: list[str] = []
        for text, kind in zip(row, kinds, strict=False):
            tag, scope = ("td", "") if cells else ("th", ' scope="row"')
            content = f"<code>{escape(text)}</code>" if kind == "code" else escape(text)
            cells.append(f"<{tag}{scope}{_css(kind)}>{content}</{tag}>")
        lines.append(f"<tr>{''.join(cells)}</tr>")
    body = "\n".join(lines)
    return f'<div class="wide"><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody>\n</table></div>'


def shaded_table(names: Sequence[str], counts: Sequence[Sequence[int]]) -> str:
    """Return a square table of counts, each shaded by its share of its row."""
    head = "".join(f'<th scope="col" class="cell">{escape(name)}</th>' for name in names)
    rows = []
    for name, row in zip(names, counts, strict=True):
        total = sum(row) or 1
        cells = "".join(
            f'<td class="cell" style="background: rgba(var(--shade), {0.55 * count / total:.3f})">{count:,}</td>'
            for count in row
        )
        rows.append(f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>')
    return (
        f'<div class="wide"><table>\n<thead><tr><th scope="col">label</th>{head}</tr></thead>\n<tbody>\n'
        + "\n".join(rows)
        + "\n</tbody>\n</table></div>"
    )


FIGURE = '<figure role="group"'


def figure(svg: str, caption: str, kind: str = "") -> str:
    """Return a figure with its caption. The SVG is our own markup and is not escaped."""
    return f"{FIGURE}{_css(kind)}>\n{svg}\n<figcaption>{escape(caption)}</figcaption>\n</figure>"


def find_figures(page: str) -> list[tuple[str, str]]:
    """Return the SVG and caption, as written, of each figure that `figure` put into a page."""
    return re.findall(rf"{FIGURE}[^>]*>\n(<svg.*?</svg>)\n<figcaption>(.*?)</figcaption>", page, re.DOTALL)


def code(text: str) -> str:
    """Return preformatted text."""
    return f"<pre>{escape(text)}</pre>" if text else ""


def details(summary: str, text: str) -> str:
    """Return preformatted text in a collapsible element."""
    return f"<details>\n<summary>{escape(summary)}</summary>\n<pre>{escape(text)}</pre>\n</details>" if text else ""


def _css(kind: str) -> str:
    return f' class="{kind}"' if kind in ("number", "text", "note", "verdict", "bars") else ""


# Costs of each stage of a run, with its date and machine.


def gather_costs(folders: Mapping[Path, float | None]) -> list[dict[str, Any]]:
    """Return the cost rows of the stages.

    Args:
        folders: folders of results, in the order of the run → seconds if the result itself has them, used if there are
            no recorded costs.
    Returns:
        In plain JSON values: stage, key, seconds; and, if costs are recorded, began, processor_seconds, peak_bytes,
        machine and parts, the number of processes that worked on it one after another.
    """
    rows = []
    for folder, seconds in folders.items():
        manifest, costs = read_manifest(folder), read_costs(folder)
        row: dict[str, Any] = {"stage": manifest.stage, "key": manifest.key, "seconds": seconds}
        if costs:
            row |= {
                "seconds": sum(cost.seconds for cost in costs),
                "processor_seconds": sum(cost.processor_seconds for cost in costs),
                "peak_bytes": max(cost.peak_bytes for cost in costs),
                "began": costs[0].began,
                "machine": " and ".join(dict.fromkeys(cost.machine for cost in costs)),
                "parts": len(costs),
            }
        rows.append(row)
    return rows


def describe_costs(stages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the cost section of the report."""
    rows = []
    for stage in stages:
        began = stage.get("began", "").replace("T", " ")[:16]
        parts = f", in {stage['parts']} parts" if stage.get("parts", 1) > 1 else ""
        seconds, peak = stage.get("seconds"), stage.get("peak_bytes", 0) / 1e6 or None
        numbers = ((seconds, ",.1f"), (stage.get("processor_seconds"), ",.1f"), (peak, ",.0f"))
        written = ("" if value is None else format(value, spec) for value, spec in numbers)
        rows.append([stage["stage"], stage["key"], began + parts, *written])
    header = ["stage", "content key", "began, UTC", "seconds", "processor seconds", "peak memory, MB"]
    kinds = ["", "code", "", "number", "number", "number"]
    machines: dict[str, list[str]] = {}
    for stage in stages:
        if stage.get("machine"):
            machines.setdefault(stage["machine"], []).append(stage["stage"])
    made = [f"{', '.join(dict.fromkeys(names))}: {machine}" for machine, names in machines.items()]
    note = "Seconds of the work itself, without the start of its process; memory of the largest process."
    return [table(header, rows, kinds), paragraph("; ".join(made) + ". " + note if made else "", "note")]


def summarise_costs(stages: Sequence[Mapping[str, Any]], backend: str) -> str:
    """Return one line on when, where and how long the run was made; empty if no costs are recorded."""
    noted = [stage for stage in stages if stage.get("began")]
    if not noted:
        return ""
    last, machines = max(stage["began"] for stage in noted), dict.fromkeys(stage["machine"] for stage in noted)
    minutes, seconds = divmod(round(sum(stage["seconds"] or 0.0 for stage in stages)), 60)
    hours, minutes = divmod(minutes, 60)
    parts = [f"{hours} h"] * (hours > 0) + [f"{minutes} min"] * (hours + minutes > 0) + [f"{seconds} s"]
    return f"{last[:10]}, {backend} on {' and '.join(machines)}: {' '.join(parts)} in all stages."

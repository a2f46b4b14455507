"""Lay out what a grid of fine-tunings came to, as rows, plain text and Markdown."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_bert_flow.evaluation.headings import format_spread, name_metric
from keras_bert_flow.evaluation.summary import align
from keras_bert_flow.json_documents import read_json_object
from keras_bert_flow.markdown import as_markdown

GRID_FILE, RANDOM_GRID_FILE = "grid.json", "grid-random.json"
CHOSEN, FAILED = "chosen", "not finite"
NOTE = (
    "Scores are of the dev set, which has chosen the point as well: that of the chosen one is too high by what chance "
    "gave the best of so many. Report the scores of a test set that has chosen nothing."
)


def read_grid(finetuned: str | Path, name: str = GRID_FILE) -> dict[str, Any] | None:
    """Return what `kbf finetune` kept of a grid, or None where it had none.

    Raises:
        ValueError: it is damaged.
    """
    path = Path(finetuned) / name
    if not path.is_file():
        return None
    grid = read_json_object(path)
    try:
        grid_rows(grid), other_seconds(grid)
    except (LookupError, TypeError, ValueError, AttributeError):
        raise ValueError(f"A grid must have all of its fields. Received: {path}, damaged. Fine-tune again.") from None
    return grid


def other_seconds(grid: Mapping[str, Any] | None) -> float:
    """Add up the time of the points that were not chosen; that of runs that failed is not known."""
    if not grid:
        return 0.0
    return sum((point["seconds"] or 0.0 for point in grid["points"] if point["name"] != grid["chosen"]), 0.0)


def grid_rows(grid: Mapping[str, Any]) -> list[list[str]]:
    """Lay out the table: a header row, then a row a point, the cheapest first."""
    metric = grid["main_metric"]
    heading = name_metric(grid["kind"], metric)
    header = ["learning rate", "batch size", "epochs", heading, "runs", "seconds", ""]
    rows = []
    for point in grid["points"]:
        is_chosen, score = point["name"] == grid["chosen"], point["score"]
        rows.append(
            [
                f"{point['learning_rate']:g}",
                str(point["batch_size"]),
                str(point["epochs"]),
                FAILED if score is None else format_spread(score, heading),
                str(len(point["runs"])),
                "" if point["seconds"] is None else f"{point['seconds']:,.1f}",
                CHOSEN if is_chosen else "",
            ]
        )
    return [header, *rows]


def grid_text(grid: Mapping[str, Any]) -> str:
    """Write the table in aligned plain text, for the terminal."""
    return align(grid_rows(grid))


def grid_markdown(grid: Mapping[str, Any]) -> str:
    """Write the table in Markdown, for Prefect's interface, with what is to be thought of its scores."""
    return f"{as_markdown(grid_rows(grid))}\n\n{NOTE}"

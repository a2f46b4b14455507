"""Tables of a grid search over fine-tunings, as rows, plain text and Markdown."""

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
    """Return the grid that `kbf finetune` saved, or None if it had none.

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
    """Return the total time of the points that were not chosen; that of failed runs is not known."""
    if not grid:
        return 0.0
    return sum((point["seconds"] or 0.0 for point in grid["points"] if point["name"] != grid["chosen"]), 0.0)


def grid_rows(grid: Mapping[str, Any]) -> list[list[str]]:
    """Return the table: a header row, then one row per point, cheapest first."""
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
    """Return the table as aligned plain text, for the terminal."""
    return align(grid_rows(grid))


def grid_markdown(grid: Mapping[str, Any]) -> str:
    """Return the table as Markdown, for Prefect's interface, with a note on how to read its scores."""
    return f"{as_markdown(grid_rows(grid))}\n\n{NOTE}"

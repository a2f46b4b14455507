"""Show the results of a run in Prefect's UI, as artifacts."""

import base64
import html
import re
from collections.abc import Sequence
from pathlib import Path

from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact

from flows.report_pages import REPORT, find_page_url
from flows.tasks import TaskResult
from keras_bert_flow.console.terminal import code_span, escape_markdown
from keras_bert_flow.evaluation.page import find_figures
from keras_bert_flow.files.paths import name_path
from keras_bert_flow.stores.fetching import fetch

RESULTS = "report.md"
GREY = "#8a8f98"  # readable on the UI's light and dark pages; an image does not inherit the text colour
SVG = "http://www.w3.org/2000/svg"


def show_report(evaluation: Path) -> None:
    """Create the artifact `report`: the conclusion, the tables, the curves, and the location of the whole report."""
    here, place = fetch(evaluation), name_path(evaluation / REPORT)
    results = (here / RESULTS).read_text(encoding="utf-8").strip()
    where, address = f"The whole report: {code_span(place)}", find_page_url(here / REPORT)
    if address is not None:
        create_link_artifact(address, link_text="The whole report", key="report-page", description=where)
        where = f"[The whole report]({address}), {code_span(place)}"
    drawings = "\n\n".join(draw_images((here / REPORT).read_text(encoding="utf-8")))
    create_markdown_artifact(f"{results}\n\n{where}\n\n{drawings}\n", key="report", description=where)


def show_stages(results: Sequence[TaskResult]) -> None:
    """Create the artifact `stages`: one row per stage, with its key, folder and time."""
    rows = [
        {
            "stage": done.stage.name,
            "key": done.stage.key,
            "cached": done.is_cached,
            "seconds": done.seconds,
            "folder": escape_markdown(name_path(done.stage.folder)),  # the UI renders cells as Markdown
        }
        for done in results
    ]
    create_table_artifact(key="stages", table=rows, description="What each stage made and where.")


def draw_images(page: str) -> list[str]:
    """Return the drawings of a report as Markdown images with inline data."""
    images = []
    for svg, caption in find_figures(page):
        standalone = re.sub("<svg", f'<svg xmlns="{SVG}"', svg, count=1).replace("currentColor", GREY)
        data = base64.b64encode(standalone.encode()).decode()
        images.append(f"![{escape_markdown(html.unescape(caption))}](data:image/svg+xml;base64,{data})")
    return images

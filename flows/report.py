"""Put the results of a run where Prefect's UI shows them."""

from pathlib import Path
from typing import Any

from prefect.artifacts import create_markdown_artifact, create_table_artifact

from keras_bert_flow.local_paths import name_path
from keras_bert_flow.markdown import code_span, escape_markdown
from keras_bert_flow.stores.fetching import fetch

REPORT = "report.html"
RESULTS = "report.md"


def show_report(evaluation: Path) -> None:
    """Create the artifact `report`: the table of results and where the whole report lies."""
    results = (fetch(evaluation) / RESULTS).read_text(encoding="utf-8").strip()
    where = f"The whole report: {code_span(name_path(evaluation / REPORT))}"
    create_markdown_artifact(key="report", markdown=f"{results}\n\n{where}\n", description=where)


def show_stages(rows: list[dict[str, Any]]) -> None:
    """Create the artifact `stages`: a row a stage, with its key, folder and time."""
    shown = [row | {"folder": escape_markdown(row["folder"])} for row in rows]  # the UI takes cells for Markdown
    create_table_artifact(key="stages", table=shown, description="What each stage made and where.")

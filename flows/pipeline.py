"""The flows: the whole pipeline from raw text to the report, and each of its parts alone.

The stages are tasks of one flow run rather than subflows, so that Prefect shows them on one page: one graph, one log,
each stage Completed, Cached or Failed. Its results are shown there as artifacts.
"""

import base64
import html
import os
import re
from collections.abc import Sequence
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from urllib.parse import quote

from prefect import flow
from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact

from flows.form import name_run, with_form
from flows.parameters import CHECKED, FIELDS, resolve_folder
from flows.server import REPORTS_FOLDERS, REPORTS_URL
from flows.stages import (
    MODEL,
    REPORT,
    evaluation_stage,
    find_finetuned,
    find_pretrained,
    find_records,
    finetuning_stage,
    make_all,
    make_augmented,
    make_builtin,
    make_pretrained,
    make_records,
)
from flows.tasks import TaskResult, run_task
from keras_bert_flow.checks.run import check_run
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.console.terminal import code_span, escape_markdown
from keras_bert_flow.evaluation.page import find_figures
from keras_bert_flow.files.paths import name_path
from keras_bert_flow.results.choosing import link_newest
from keras_bert_flow.stores.fetching import fetch

IS_CHECKED: ContextVar[bool] = ContextVar("is_checked", default=False)  # `kbf run` has checked the configuration
RESULTS = "report.md"
GREY = "#8a8f98"  # readable on the UI's light and dark pages; an image does not inherit the text colour
SVG = "http://www.w3.org/2000/svg"


@flow(name="bert-pipeline", flow_run_name=name_run)
@with_form(*FIELDS)
def bert_pipeline(config: PipelineConfig) -> str:
    """Train and evaluate a BERT from raw text, running only the stages that are not finished.

    Returns:
        The path of the report.
    """
    results: list[TaskResult] = []
    if not IS_CHECKED.get():
        check_run(config)
    evaluation = make_all(config, partial(run_task, results=results))
    show_stages(results)
    show_report(evaluation)
    link_newest(evaluation, config.name)
    return name_path(evaluation / REPORT)


@flow(name="preprocess", flow_run_name=name_run)
@with_form("corpus", "output")
def preprocess(config: PipelineConfig) -> str:
    """Learn a vocabulary and write pre-training records.

    Returns:
        The folder of records; with a second phase, that phase's.
    """
    results: list[TaskResult] = []
    make = partial(run_task, results=results)
    check_run(config, CHECKED["preprocess"])
    records = make_records(make_builtin(config, make), make)
    show_stages(results)
    return name_path(records[-1])


@flow(name="pretrain", flow_run_name=name_run)
@with_form("corpus", "size", "steps", "backend", "output")
def pretrain(
    config: PipelineConfig,
    records: str | None = None,
) -> str:
    """Train a model on pre-training records, or resume from its last checkpoint.

    Args:
        records: Folder of records; by default the one that `preprocess` made for this configuration.
    Returns:
        The folder of pre-training, which holds `model/`; with a second phase or a student, the folder of the last.
    """
    results: list[TaskResult] = []
    make = partial(run_task, results=results)
    check_run(config, CHECKED["pretrain"])
    config = make_builtin(config, make)
    folders = [resolve_folder(records)] if records else find_records(config)
    pretrained = make_pretrained(config, folders, make)
    show_stages(results)
    return name_path(pretrained[-1])


@flow(name="finetune", flow_run_name=name_run)
@with_form(*FIELDS)
def finetune(
    config: PipelineConfig,
    model: str | None = None,
) -> str:
    """Fine-tune a pre-trained model on the configured task, once per seed.

    Args:
        model: Model directory, ours or Hugging Face's; by default the one that `pretrain` made for this configuration.
    Returns:
        The folder of fine-tuned models.
    """
    results: list[TaskResult] = []
    make = partial(run_task, results=results)
    if not model:
        config.check_finetuned_length()
    check_run(config, CHECKED["finetune"])
    config = make_builtin(config, make)
    phases = [] if model else find_pretrained(config, find_records(config))
    models = [resolve_folder(model)] if model else [phase / MODEL for phase in phases]
    config = make_augmented(config, models, make)
    finetuned = make(finetuning_stage(config, models[-1]))
    show_stages(results)
    return name_path(finetuned)


@flow(name="evaluate", flow_run_name=name_run)
@with_form(*FIELDS)
def evaluate(
    config: PipelineConfig,
    records: str | None = None,
    pretrained: str | None = None,
    finetuned: str | None = None,
) -> str:
    """Evaluate fine-tuned models and write the report.

    Args:
        records: Folder of records; by default the one that `preprocess` made for this configuration.
        pretrained: Folder of pre-training; by default the one that `pretrain` made.
        finetuned: Folder of fine-tuned models; by default the one that `finetune` made.
    Returns:
        The path of the report.
    """
    results: list[TaskResult] = []
    make = partial(run_task, results=results)
    check_run(config, CHECKED["evaluate"])
    config = make_builtin(config, make)
    folders = [resolve_folder(records)] if records else find_records(config)
    phases = [resolve_folder(pretrained)] if pretrained else find_pretrained(config, folders)
    config = make_augmented(config, [phase / MODEL for phase in phases], make)
    finetuned_folder = resolve_folder(finetuned) if finetuned else find_finetuned(config, phases[-1])
    evaluation = make(evaluation_stage(config, finetuned_folder, phases, folders[-1]))
    show_stages(results)
    show_report(evaluation)
    link_newest(evaluation, config.name)
    return name_path(evaluation / REPORT)


def show_report(evaluation: Path) -> None:
    """Create the artifact `report`: the conclusion, the tables, the curves, and the location of the whole report."""
    here, place = fetch(evaluation), name_path(evaluation / REPORT)
    results = (here / RESULTS).read_text(encoding="utf-8").strip()
    where, page = f"The whole report: {code_span(place)}", (here / REPORT).resolve()
    url, folders = os.environ.get(REPORTS_URL), os.environ.get(REPORTS_FOLDERS, "").split(os.pathsep)
    if url and any(folder and page.is_relative_to(folder) for folder in folders):  # it is served
        address = url + quote(page.as_posix())
        create_link_artifact(address, link_text="The whole report", key="report-page", description=where)
        where = f"[The whole report]({address}), {code_span(place)}"
    images = []
    for svg, caption in find_figures((here / REPORT).read_text(encoding="utf-8")):
        standalone = re.sub("<svg", f'<svg xmlns="{SVG}"', svg, count=1).replace("currentColor", GREY)
        data = base64.b64encode(standalone.encode()).decode()
        images.append(f"![{escape_markdown(html.unescape(caption))}](data:image/svg+xml;base64,{data})")
    drawings = "\n\n".join(images)
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

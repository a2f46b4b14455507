"""The flows: the whole pipeline from raw text to the report, and each of its parts alone.

The stages are tasks of one flow run rather than subflows, so that Prefect shows them on one page: one graph, one log,
each stage Completed, Cached or Failed.
"""

from contextvars import ContextVar
from functools import partial

from prefect import flow

from flows.form import name_run, with_form
from flows.parameters import CHECKED, FIELDS
from flows.report import show_report, show_stages
from flows.report_pages import REPORT
from flows.settling import settle_folder
from flows.stages import (
    MODEL,
    evaluation_stage,
    find_finetuned,
    find_pretrained,
    find_records,
    finetuning_stage,
    make_all,
    make_builtin,
    make_pretrained,
    make_records,
)
from flows.tasks import TaskResult, run_task
from keras_bert_flow.checks.run import check_run
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.files.paths import name_path
from keras_bert_flow.results.choosing import link_newest

IS_CHECKED: ContextVar[bool] = ContextVar("is_checked", default=False)  # `kbf run` has checked the configuration


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
    folders = [settle_folder(records)] if records else find_records(config)
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
    folder = settle_folder(model) if model else find_pretrained(config, find_records(config))[-1] / MODEL
    finetuned = make(finetuning_stage(config, folder))
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
    folders = [settle_folder(records)] if records else find_records(config)
    phases = [settle_folder(pretrained)] if pretrained else find_pretrained(config, folders)
    finetuned_folder = settle_folder(finetuned) if finetuned else find_finetuned(config, phases[-1])
    evaluation = make(evaluation_stage(config, finetuned_folder, phases, folders[-1]))
    show_stages(results)
    show_report(evaluation)
    link_newest(evaluation, config.name)
    return name_path(evaluation / REPORT)

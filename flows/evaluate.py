"""The flow from fine-tuned models to the report."""

from typing import Any

from prefect import flow

from flows.finished import find_finetuned, find_pretrained, find_records
from flows.report import REPORT, show_report, show_stages
from flows.settling import DEFAULT_CONFIG, settle_config, settle_folder
from flows.stages import evaluation_stage
from flows.tasks import evaluate_model, fill_builtin, perform
from keras_bert_flow.config.pipeline import Backend, PipelineConfig
from keras_bert_flow.local_paths import name_path
from keras_bert_flow.preflight.run import check_run


@flow(name="evaluate")
def evaluate(
    config_path: str = DEFAULT_CONFIG,
    overrides: tuple[str, ...] = (),
    config: PipelineConfig | None = None,
    backend: Backend | None = None,
    records: str | None = None,
    pretrained: str | None = None,
    finetuned: str | None = None,
) -> str:
    """Measure fine-tuned models and write the report.

    Args:
        config_path: Configuration file, relative to the checkout.
        overrides: Settings that replace those of the file, such as name=first-try.
        config: A filled-in configuration, used in place of the file.
        backend: Keras backend, in place of the configured one.
        records: Folder of records; by default the one that `preprocess` made for this configuration.
        pretrained: Folder of pre-training; by default the one that `pretrain` made.
        finetuned: Folder of fine-tuned models; by default the one that `finetune` made.
    Returns:
        The path of the report.
    """
    rows: list[dict[str, Any]] = []
    settled = settle_config(config_path, overrides, config, backend)
    check_run(settled, ("evaluation",))
    settled = fill_builtin(settled, rows)
    folders = [settle_folder(records)] if records else find_records(settled)
    phases = [settle_folder(pretrained)] if pretrained else find_pretrained(settled, folders)
    finetuned_folder = settle_folder(finetuned) if finetuned else find_finetuned(settled, phases[-1])
    stage = evaluation_stage(settled, finetuned_folder, phases, folders[-1])
    evaluation = perform(evaluate_model, stage, rows)
    show_stages(rows)
    show_report(evaluation)
    return name_path(evaluation / REPORT)

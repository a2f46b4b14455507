"""The flow from fine-tuned models to the report."""

from functools import partial

from prefect import flow

from flows.finished import find_finetuned, find_pretrained, find_records
from flows.form import name_run, with_form
from flows.parameters import CHECKED, FIELDS
from flows.report import show_report, show_stages
from flows.report_pages import REPORT
from flows.settling import settle_folder
from flows.stages import evaluation_stage, make_builtin
from flows.tasks import Performed, perform
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.lineage.newest import link_newest
from keras_bert_flow.local_paths import name_path
from keras_bert_flow.preflight.run import check_run


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
    performed: list[Performed] = []
    make = partial(perform, performed=performed)
    check_run(config, CHECKED["evaluate"])
    config = make_builtin(config, make)
    folders = [settle_folder(records)] if records else find_records(config)
    phases = [settle_folder(pretrained)] if pretrained else find_pretrained(config, folders)
    finetuned_folder = settle_folder(finetuned) if finetuned else find_finetuned(config, phases[-1])
    evaluation = make(evaluation_stage(config, finetuned_folder, phases, folders[-1]))
    show_stages(performed)
    show_report(evaluation)
    link_newest(evaluation, config.name)
    return name_path(evaluation / REPORT)

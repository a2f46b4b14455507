"""The flow from text to masked pre-training records."""

from pathlib import Path

from prefect import flow

from flows.form import name_run, with_form
from flows.report import show_stages
from flows.stages import make_records as make_all
from flows.tasks import TEXT, Performed, fill_builtin, perform
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.local_paths import name_path
from keras_bert_flow.preflight.run import check_run


@flow(name="preprocess", flow_run_name=name_run)
@with_form("corpus", "output")
def preprocess(config: PipelineConfig) -> str:
    """Learn a vocabulary and write pre-training records.

    Returns:
        The folder of records; of a second phase, where there is one.
    """
    performed: list[Performed] = []
    check_run(config, ("vocabulary", "records"))
    config = fill_builtin(config, performed)
    records = make_records(config, performed)
    show_stages(performed)
    return name_path(records[-1])


def make_records(config: PipelineConfig, performed: list[Performed]) -> list[Path]:
    """Make the records of each phase of pre-training."""
    return make_all(config, lambda stage: perform(TEXT[stage.name], stage, performed))

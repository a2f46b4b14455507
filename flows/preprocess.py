"""The flow from text to masked pre-training records."""

from pathlib import Path
from typing import Any

from prefect import flow

from flows.report import show_stages
from flows.settling import DEFAULT_CONFIG, settle_config
from flows.stages import records_stage, vocabulary_stage
from flows.tasks import fill_builtin, learn_vocabulary, perform, write_records
from keras_bert_flow.config.pipeline import Backend, PipelineConfig
from keras_bert_flow.local_paths import name_path
from keras_bert_flow.preflight.run import check_run


@flow(name="preprocess")
def preprocess(
    config_path: str = DEFAULT_CONFIG,
    overrides: tuple[str, ...] = (),
    config: PipelineConfig | None = None,
    backend: Backend | None = None,
) -> str:
    """Learn a vocabulary and write pre-training records.

    Args:
        config_path: Configuration file, relative to the checkout.
        overrides: Settings that replace those of the file, such as records.duplication=2.
        config: A filled-in configuration, used in place of the file.
        backend: Keras backend, in place of the configured one.
    Returns:
        The folder of records; of a second phase, where there is one.
    """
    rows: list[dict[str, Any]] = []
    settled = settle_config(config_path, overrides, config, backend)
    check_run(settled, ("vocabulary", "records"))
    settled = fill_builtin(settled, rows)
    records = make_records(settled, rows)
    show_stages(rows)
    return name_path(records[-1])


def make_records(config: PipelineConfig, rows: list[dict[str, Any]]) -> list[Path]:
    """Make the records of each phase of pre-training."""
    vocabulary = perform(learn_vocabulary, vocabulary_stage(config), rows)
    return [perform(write_records, records_stage(phase, vocabulary), rows) for phase in config.phases]

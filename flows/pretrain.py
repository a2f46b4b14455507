"""The flow from records to a pre-trained model."""

from typing import Any

from prefect import flow

from flows.finished import find_records
from flows.report import show_stages
from flows.settling import DEFAULT_CONFIG, settle_config, settle_folder
from flows.stages import make_pretrained
from flows.tasks import TRAINING, fill_builtin, perform
from keras_bert_flow.config.pipeline import Backend, PipelineConfig
from keras_bert_flow.local_paths import name_path
from keras_bert_flow.preflight.run import check_run


@flow(name="pretrain")
def pretrain(
    config_path: str = DEFAULT_CONFIG,
    overrides: tuple[str, ...] = (),
    config: PipelineConfig | None = None,
    backend: Backend | None = None,
    records: str | None = None,
) -> str:
    """Train a model on pre-training records, or go on from its last checkpoint.

    Args:
        config_path: Configuration file, relative to the checkout.
        overrides: Settings that replace those of the file, such as pretraining.total_steps=100.
        config: A filled-in configuration, used in place of the file.
        backend: Keras backend, in place of the configured one.
        records: Folder of records; by default the one that `preprocess` made for this configuration.
    Returns:
        The folder of pre-training, of its second phase or of the student where there is one, which holds `model/`.
    """
    rows: list[dict[str, Any]] = []
    settled = settle_config(config_path, overrides, config, backend)
    check_run(settled, ("pretraining",))
    settled = fill_builtin(settled, rows)
    folders = [settle_folder(records)] if records else find_records(settled)
    pretrained = make_pretrained(settled, folders, lambda stage: perform(TRAINING[stage.name], stage, rows))
    show_stages(rows)
    return name_path(pretrained[-1])

"""The flow from records to a pre-trained model."""

from functools import partial

from prefect import flow

from flows.finished import find_records
from flows.form import name_run, with_form
from flows.parameters import CHECKED
from flows.report import show_stages
from flows.settling import settle_folder
from flows.stages import make_builtin, make_pretrained
from flows.tasks import Performed, perform
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.local_paths import name_path
from keras_bert_flow.preflight.run import check_run


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
    performed: list[Performed] = []
    make = partial(perform, performed=performed)
    check_run(config, CHECKED["pretrain"])
    config = make_builtin(config, make)
    folders = [settle_folder(records)] if records else find_records(config)
    pretrained = make_pretrained(config, folders, make)
    show_stages(performed)
    return name_path(pretrained[-1])

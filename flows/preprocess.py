"""The flow from text to masked pre-training records."""

from functools import partial

from prefect import flow

from flows.form import name_run, with_form
from flows.parameters import CHECKED
from flows.report import show_stages
from flows.stages import make_builtin, make_records
from flows.tasks import Performed, perform
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.local_paths import name_path
from keras_bert_flow.preflight.run import check_run


@flow(name="preprocess", flow_run_name=name_run)
@with_form("corpus", "output")
def preprocess(config: PipelineConfig) -> str:
    """Learn a vocabulary and write pre-training records.

    Returns:
        The folder of records; with a second phase, that phase's.
    """
    performed: list[Performed] = []
    make = partial(perform, performed=performed)
    check_run(config, CHECKED["preprocess"])
    records = make_records(make_builtin(config, make), make)
    show_stages(performed)
    return name_path(records[-1])

"""The whole pipeline as one flow: from raw text to the report.

The stages are tasks of one flow run rather than subflows, so that Prefect shows them on one page: one graph, one log,
each stage Completed, Cached or Failed.
"""

from contextvars import ContextVar
from functools import partial

from prefect import flow

from flows.form import name_run, with_form
from flows.parameters import FIELDS
from flows.report import show_report, show_stages
from flows.report_pages import REPORT
from flows.stages import make_all
from flows.tasks import Performed, perform
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.lineage.newest import link_newest
from keras_bert_flow.local_paths import name_path
from keras_bert_flow.preflight.run import check_run

IS_CHECKED: ContextVar[bool] = ContextVar("is_checked", default=False)  # `kbf run` has checked the configuration


@flow(name="bert-pipeline", flow_run_name=name_run)
@with_form(*FIELDS)
def bert_pipeline(config: PipelineConfig) -> str:
    """Train and evaluate a BERT from raw text, running only the stages that are not finished.

    Returns:
        The path of the report.
    """
    performed: list[Performed] = []
    if not IS_CHECKED.get():
        check_run(config)
    evaluation = make_all(config, partial(perform, performed=performed))
    show_stages(performed)
    show_report(evaluation)
    link_newest(evaluation, config.name)
    return name_path(evaluation / REPORT)

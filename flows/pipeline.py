"""The whole walk as one flow: from raw text to the report.

The stages are tasks of one flow run, not subflows, so that Prefect shows them on one page: one graph, one log, each
stage Completed, Cached or Failed.
"""

from contextvars import ContextVar

from prefect import flow

from flows.form import FIELDS, name_run, with_form
from flows.preprocess import make_records
from flows.report import show_report, show_stages
from flows.report_pages import REPORT
from flows.stages import MODEL, evaluation_stage, finetuning_stage, make_pretrained
from flows.tasks import TRAINING, Performed, evaluate_model, fill_builtin, finetune_model, perform
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.local_paths import name_path
from keras_bert_flow.preflight.run import check_run
from keras_bert_flow.preflight.stages import check_label_words
from keras_bert_flow.stores.fetching import fetch
from keras_bert_flow.text.tokenizers.files import find_tokenizer_file

IS_CHECKED: ContextVar[bool] = ContextVar("is_checked", default=False)  # `kbf run` has checked the configuration


@flow(name="bert-pipeline", flow_run_name=name_run)
@with_form(*FIELDS)
def bert_pipeline(config: PipelineConfig) -> str:
    """Take raw text to an evaluated BERT, doing only what is not done yet.

    Returns:
        The path of the report.
    """
    performed: list[Performed] = []
    if not IS_CHECKED.get():
        check_run(config)
    config = fill_builtin(config, performed)
    records = make_records(config, performed)
    if config.finetuning.label_words:
        check_label_words(config, find_tokenizer_file(fetch(records[-1], wait=False)))
    phases = make_pretrained(config, records, lambda stage: perform(TRAINING[stage.name], stage, performed))
    finetuned = perform(finetune_model, finetuning_stage(config, phases[-1] / MODEL), performed)
    stage = evaluation_stage(config, finetuned, phases, records[-1])
    evaluation = perform(evaluate_model, stage, performed)
    show_stages(performed)
    show_report(evaluation)
    return name_path(evaluation / REPORT)

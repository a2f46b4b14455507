"""The whole walk as one flow: from raw text to the report.

The stages are tasks of one flow run, not subflows, so that Prefect shows them on one page: one graph, one log, each
stage Completed, Cached or Failed.
"""

from contextvars import ContextVar
from typing import Any

from prefect import flow

from flows.preprocess import make_records
from flows.report import REPORT, show_report, show_stages
from flows.settling import DEFAULT_CONFIG, settle_config
from flows.stages import MODEL, evaluation_stage, finetuning_stage, make_pretrained
from flows.tasks import TRAINING, evaluate_model, fill_builtin, finetune_model, perform
from keras_bert_flow.config.pipeline import Backend, PipelineConfig
from keras_bert_flow.local_paths import name_path
from keras_bert_flow.preflight.run import check_run
from keras_bert_flow.preflight.stages import check_label_words
from keras_bert_flow.stores.fetching import fetch
from keras_bert_flow.text.tokenizers.files import find_tokenizer_file

IS_CHECKED: ContextVar[bool] = ContextVar("is_checked", default=False)  # `kbf run` has checked the configuration


@flow(name="bert-pipeline")
def bert_pipeline(
    config_path: str = DEFAULT_CONFIG,
    overrides: tuple[str, ...] = (),
    config: PipelineConfig | None = None,
    backend: Backend | None = None,
) -> str:
    """Take raw text to an evaluated BERT, doing only what is not done yet.

    Args:
        config_path: Configuration file, relative to the checkout.
        overrides: Settings that replace those of the file, such as pretraining.total_steps=100.
        config: A filled-in configuration, used in place of the file.
        backend: Keras backend, in place of the configured one.
    Returns:
        The path of the report.
    """
    rows: list[dict[str, Any]] = []
    settled = settle_config(config_path, overrides, config, backend)
    if not IS_CHECKED.get():
        check_run(settled)
    settled = fill_builtin(settled, rows)
    records = make_records(settled, rows)
    if settled.finetuning.label_words:
        check_label_words(settled, find_tokenizer_file(fetch(records[-1], wait=False)))
    phases = make_pretrained(settled, records, lambda stage: perform(TRAINING[stage.name], stage, rows))
    finetuned = perform(finetune_model, finetuning_stage(settled, phases[-1] / MODEL), rows)
    stage = evaluation_stage(settled, finetuned, phases, records[-1])
    evaluation = perform(evaluate_model, stage, rows)
    show_stages(rows)
    show_report(evaluation)
    return name_path(evaluation / REPORT)

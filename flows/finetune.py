"""The flow from a pre-trained model to models of a task."""

from typing import Any

from prefect import flow

from flows.finished import find_pretrained, find_records
from flows.report import show_stages
from flows.settling import DEFAULT_CONFIG, settle_config, settle_folder
from flows.stages import MODEL, finetuning_stage
from flows.tasks import fill_builtin, finetune_model, perform
from keras_bert_flow.config.pipeline import Backend, PipelineConfig
from keras_bert_flow.local_paths import name_path
from keras_bert_flow.preflight.run import check_run


@flow(name="finetune")
def finetune(
    config_path: str = DEFAULT_CONFIG,
    overrides: tuple[str, ...] = (),
    config: PipelineConfig | None = None,
    backend: Backend | None = None,
    model: str | None = None,
) -> str:
    """Fine-tune a pre-trained model on the configured task, once per seed.

    Args:
        config_path: Configuration file, relative to the checkout.
        overrides: Settings that replace those of the file, such as finetuning.epochs=1.
        config: A filled-in configuration, used in place of the file.
        backend: Keras backend, in place of the configured one.
        model: Model directory, ours or Hugging Face's; by default what `pretrain` made for this configuration.
    Returns:
        The folder of fine-tuned models.
    """
    rows: list[dict[str, Any]] = []
    settled = settle_config(config_path, overrides, config, backend)
    check_run(settled, ("finetuning",))
    settled = fill_builtin(settled, rows)
    folder = settle_folder(model) if model else find_pretrained(settled, find_records(settled))[-1] / MODEL
    finetuned = perform(finetune_model, finetuning_stage(settled, folder), rows)
    show_stages(rows)
    return name_path(finetuned)

"""The flow from a pre-trained model to models fine-tuned on a task."""

from functools import partial

from prefect import flow

from flows.finished import find_pretrained, find_records
from flows.form import name_run, with_form
from flows.parameters import CHECKED, FIELDS
from flows.report import show_stages
from flows.settling import settle_folder
from flows.stages import MODEL, finetuning_stage, make_builtin
from flows.tasks import Performed, perform
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.local_paths import name_path
from keras_bert_flow.preflight.run import check_run


@flow(name="finetune", flow_run_name=name_run)
@with_form(*FIELDS)
def finetune(
    config: PipelineConfig,
    model: str | None = None,
) -> str:
    """Fine-tune a pre-trained model on the configured task, once per seed.

    Args:
        model: Model directory, ours or Hugging Face's; by default the one that `pretrain` made for this configuration.
    Returns:
        The folder of fine-tuned models.
    """
    performed: list[Performed] = []
    make = partial(perform, performed=performed)
    if not model:
        config.check_finetuned_length()
    check_run(config, CHECKED["finetune"])
    config = make_builtin(config, make)
    folder = settle_folder(model) if model else find_pretrained(config, find_records(config))[-1] / MODEL
    finetuned = make(finetuning_stage(config, folder))
    show_stages(performed)
    return name_path(finetuned)

"""Fetch what a run reads from other places besides its text."""

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.local_paths import find_address
from keras_bert_flow.stores.fetching import fetch
from keras_bert_flow.training.finetuning.task_tables import fetch_tables


def fetch_inputs(config: PipelineConfig) -> PipelineConfig:
    """Return a configuration whose tables and teacher are on this disk.

    Raises:
        FileNotFoundError, OSError, ValueError: as of `stores.fetching.fetch`.
    """
    config = fetch_tables(config)
    if config.distillation is None or not (own := config.distillation.teacher) or not find_address(own):
        return config
    teacher = {"teacher": str(fetch(own))}
    return config.model_copy(update={"distillation": config.distillation.model_copy(update=teacher)})

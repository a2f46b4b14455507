"""Download the remote inputs of a run other than its text."""

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.local_paths import find_address
from keras_bert_flow.stores.fetching import fetch
from keras_bert_flow.training.finetuning.task_tables import fetch_tables


def fetch_inputs(config: PipelineConfig) -> PipelineConfig:
    """Download the tables and the teacher of a configuration, and return it with their local paths.

    Raises:
        FileNotFoundError, OSError, ValueError: as for `stores.fetching.fetch`.
    """
    config = fetch_tables(config)
    if config.distillation is None or not (own := config.distillation.teacher) or not find_address(own):
        return config
    teacher = {"teacher": str(fetch(own))}
    return config.model_copy(update={"distillation": config.distillation.model_copy(update=teacher)})

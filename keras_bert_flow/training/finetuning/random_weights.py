"""How the same shape is trained from random weights: until it stops improving, or it is no baseline."""

from keras_bert_flow.config.finetuning import MERGED
from keras_bert_flow.config.pipeline import PipelineConfig


def with_random_training(config: PipelineConfig) -> PipelineConfig:
    """Return the configuration of runs from random weights.

    They learn more slowly than pre-trained ones, so the epochs of fine-tuning show only how far they are by then. They
    have up to `random_max_epochs`, end where neither the dev score nor the dev loss has improved for
    `random_patience_epochs`, and publish the model of the best dev score, which errs in their favour. All their
    weights are trained: frozen at random, they would be no baseline. All else is as for the pre-trained model; with a
    grid they try each of its learning rates and batch sizes as well.
    """
    settings = config.finetuning
    epochs = max(settings.random_max_epochs, *(settings.grid.epochs if settings.grid else (settings.epochs,)))
    grid = settings.grid and settings.grid.model_copy(update={"epochs": (epochs,)})
    changes = {"epochs": epochs, "patience_epochs": settings.random_patience_epochs, "publish": "best", "grid": grid}
    changes |= {"frozen_layers": None, "lora_rank": None, "lora_output": MERGED}
    return config.model_copy(update={"finetuning": settings.model_copy(update=changes)})

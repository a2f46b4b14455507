"""Settings of the random-weights baseline: trained until it stops improving, for a fair comparison."""

from keras_bert_flow.config.finetuning import MERGED
from keras_bert_flow.config.pipeline import PipelineConfig


def with_random_training(config: PipelineConfig) -> PipelineConfig:
    """Return the configuration of runs from random weights.

    They learn more slowly than pre-trained weights, so the number of fine-tuning epochs would not suffice. They have up
    to `random_max_epochs`, stop when neither the dev score nor the dev loss has improved for `random_patience_epochs`,
    and publish the model with the best dev score, which errs in their favour. All their weights are trained, since
    frozen random weights would be no baseline. All other settings are those of the pre-trained model. With a grid, all
    of its learning rates and batch sizes are tried as well.
    """
    settings = config.finetuning
    epochs = max(settings.random_max_epochs, *(settings.grid.epochs if settings.grid else (settings.epochs,)))
    grid = settings.grid and settings.grid.model_copy(update={"epochs": (epochs,)})
    changes = {"epochs": epochs, "patience_epochs": settings.random_patience_epochs, "publish": "best", "grid": grid}
    changes |= {"frozen_layers": None, "lora_rank": None, "lora_output": MERGED}
    return config.model_copy(update={"finetuning": settings.model_copy(update=changes)})

"""Choose in how many parts the batches of a fine-tuning run are computed."""

from keras_bert_flow.backends.processor import is_on_processor
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.data.task_batches import TaskBatches
from keras_bert_flow.models.with_head import COMPILES_SHAPES
from keras_bert_flow.tasks.core.features import Features

PART_COUNTS = (1, 2, 4)
# What one more part costs, in token positions: its gradients, of all weights, are added to those of the other parts.
# A position costs a number of operations for each weight of the encoder, so the ratio depends little on the size of the
# model. JAX, MiniLM (6 layers of 384, 22.7 million weights), float32, one core: 0.17 s, and 1.0 ms per position.
PART_COST = 170


def choose_parts(config: PipelineConfig, features: Features) -> int:
    """Return `finetuning.accumulate_batches`, or without it what makes a step of these features cheapest.

    Each number of parts makes the same step. More parts have less padding, and each has a cost of its own. There is one
    part where parts gain nothing: on PyTorch, which computes no padding (`layers.packing`), on an accelerator, where a
    small part takes as long as a large one, and where batches hold rows of similar length. A loss that compares all
    pairs of a batch needs one part.
    """
    settings = config.finetuning
    if settings.accumulate_batches is not None:
        return settings.accumulate_batches
    is_contrastive = getattr(config.task, "objective", None) == "contrastive"
    if settings.group_by_length or is_contrastive or not COMPILES_SHAPES or not is_on_processor():
        return 1
    counts = [count for count in PART_COUNTS if settings.batch_size % count == 0]

    def cost(count: int) -> float:
        return make_batches(config, features, settings.seeds[0], count).mean_positions + PART_COST * count

    return min(counts, key=cost)


def make_batches(config: PipelineConfig, features: Features, seed: int, parts: int) -> TaskBatches:
    """Return the batches of a run."""
    settings = config.finetuning
    options = (settings.max_widths, settings.group_by_length, parts, COMPILES_SHAPES)
    return TaskBatches(features, settings.batch_size, seed, *options)

"""Choose the number of gradient accumulation parts of the batches of a fine-tuning run."""

from keras_bert_flow.backends.processor import is_on_processor
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.data.task_batches import TaskBatches
from keras_bert_flow.models.with_head import COMPILES_SHAPES
from keras_bert_flow.tasks.core.features import Features

PART_COUNTS = (1, 2, 4)
# Cost of one more part, in token positions: its gradients of all weights are added to those of the other parts. The
# cost of a position is also proportional to the weights of the encoder, so the ratio depends little on model size.
# JAX, MiniLM (6 layers of 384, 22.7 million weights), float32, one core: 0.17 s per part, 1.0 ms per position.
PART_COST = 170


def choose_parts(config: PipelineConfig, features: Features) -> int:
    """Return `finetuning.accumulate_batches`; default: the number of parts that makes a step cheapest.

    The number of parts does not change the step. More parts have less padding, but each has a fixed cost. One part is
    used if more gain nothing: on PyTorch, which skips padding (`layers.packing`), on an accelerator, where a small part
    takes as long as a large one, and for batches grouped by length. A loss that compares all pairs of a batch also
    needs one part.
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
    """Return the training batches of a run."""
    settings = config.finetuning
    options = (settings.max_widths, settings.group_by_length, parts, COMPILES_SHAPES)
    return TaskBatches(features, settings.batch_size, seed, *options)

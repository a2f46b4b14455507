"""Settings that pre-training and fine-tuning have in common: types that carry their limits and descriptions."""

from typing import Annotated, Literal

from pydantic import Field

from keras_bert_flow.config.limits import MOST_SEQUENCES

AUTO = "auto"

BatchSize = Annotated[int, Field(ge=1, le=MOST_SEQUENCES, description="Sequences of a step.")]
AccumulateBatches = Annotated[
    int,
    Field(ge=1, description="Parts in which a step's sequences are computed one after another, to the same step."),
]
WarmupSteps = Annotated[int, Field(ge=0, description="Steps in which the learning rate rises from 0.")]
LearningRate = Annotated[float, Field(gt=0, description="Highest learning rate.")]
Decay = Annotated[
    Literal["linear", "cosine", "trapezoid", "constant"],
    Field(
        description="How the learning rate falls to 0 at the last step; `trapezoid`: in the last fifth of the steps; "
        "`constant`: it stays."
    ),
]
DecayFrom = Annotated[
    Literal["warmup", "start"],
    Field(description="The fall is measured from the end of the warm-up, or from step 0 as in the original."),
]
WeightDecay = Annotated[float, Field(ge=0, description="Decoupled decay; biases and layer norms are never decayed.")]
ClipNorm = Annotated[float, Field(gt=0, description="Largest global norm of the gradient.")]
Precision = Annotated[
    Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"],
    Field(
        description="Arithmetic; weights, softmax, layer norms and losses stay float32. `auto`: mixed_bfloat16 where "
        "this machine trains faster in it, else float32."
    ),
]


def check_equal_parts(batch_size: int, accumulate_batches: int) -> None:
    """Raise ValueError unless a batch divides into equal parts."""
    if batch_size % accumulate_batches:
        raise ValueError(
            "`batch_size` must be a multiple of `accumulate_batches`. Received: "
            f"batch_size={batch_size}, accumulate_batches={accumulate_batches}"
        )


def check_at_most(name: str, value: int, limit_name: str, limit: int) -> None:
    """Raise ValueError for a setting above another one."""
    if value > limit:
        raise ValueError(f"`{name}` must be at most `{limit_name}`. Received: {name}={value}, {limit_name}={limit}.")

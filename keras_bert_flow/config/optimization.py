"""Settings that pre-training and fine-tuning have in common: types that carry their limits and descriptions."""

from typing import Annotated, Any, Literal

from pydantic import Field

from keras_bert_flow.config.limits import MOST_SEQUENCES

AUTO = "auto"

BatchSize = Annotated[int, Field(ge=1, le=MOST_SEQUENCES, description="Sequences per step.")]
AccumulateBatches = Annotated[
    int,
    Field(ge=1, description="Number of parts whose gradients are accumulated to one step of `batch_size` sequences."),
]
WarmupSteps = Annotated[
    int,
    Field(
        ge=0,
        description="Number of steps in which the learning rate rises linearly from 0. Default with fewer steps than "
        "that: a tenth of them.",
    ),
]
LearningRate = Annotated[float, Field(gt=0, description="Peak learning rate.")]
Decay = Annotated[
    Literal["linear", "cosine", "trapezoid", "constant"],
    Field(
        description="How the learning rate decays to 0 at the last step; `trapezoid`: over the last fifth of the "
        "steps; `constant`: no decay."
    ),
]
DecayFrom = Annotated[
    Literal["warmup", "start"],
    Field(description="Whether the decay starts at the end of the warm-up, or at step 0 as in the original."),
]
WeightDecay = Annotated[
    float, Field(ge=0, description="Decoupled weight decay; biases and layer norms are never decayed.")
]
ClipNorm = Annotated[float, Field(gt=0, description="Maximum global norm of the gradient.")]
Precision = Annotated[
    Literal["auto", "float32", "mixed_bfloat16", "mixed_float16"],
    Field(
        description="Arithmetic; weights, softmax, layer norms and losses stay float32. `auto`: mixed_bfloat16 if "
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


def check_at_most(name: str, value: int, limit_name: str, limit: int, remedy: str = "") -> None:
    """Raise ValueError for a setting above another one."""
    if value > limit:
        received = f"{name}={value}, {limit_name}={limit}"
        raise ValueError(f"`{name}` must be at most `{limit_name}`. Received: {received}. {remedy}".rstrip())


def fit_warmup(values: Any, default: int) -> Any:
    """Return the values of a section, with a warm-up that fits its steps if they are few and none is given.

    Args:
        default: `warmup_steps` of the section.
    """
    if not isinstance(values, dict) or "warmup_steps" in values:
        return values
    steps = values.get("total_steps")
    if isinstance(steps, int | float) and 0 < steps < default:
        return values | {"warmup_steps": int(steps // 10)}
    return values


def check_schedule(total_steps: int, warmup_steps: int, batch_size: int, accumulate_batches: int) -> None:
    """Raise ValueError for a warm-up longer than the run, and for batches that do not divide into equal parts."""
    remedy = "Set warmup_steps as well, or leave it out of the configuration: then it is a tenth."
    check_at_most("warmup_steps", warmup_steps, "total_steps", total_steps, remedy)
    check_equal_parts(batch_size, accumulate_batches)

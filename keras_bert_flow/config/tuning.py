"""Section `tuning`."""

from typing import Any, Literal

from pydantic import Field, model_validator

from keras_bert_flow.config.limits import Seed
from keras_bert_flow.config.settings import Settings

Objective = Literal["dev_score", "held_out_loss"]


class Dimension(Settings):
    """The values that a search gives a setting: a range, or some of them."""

    low: int | float | None = Field(
        None, description="Lowest value; if both bounds are integers, integers are sampled."
    )
    high: int | float | None = Field(None, description="Highest value.")
    log: bool = Field(False, description="Sample uniformly in the logarithm.")
    choices: tuple[Any, ...] | None = Field(None, description="List of values, instead of a range.")

    @model_validator(mode="after")
    def _check_range(self):
        if self.choices is not None:
            if (self.low, self.high) != (None, None) or self.log:
                raise ValueError(
                    f"`choices` must go without low, high and log. Received: low={self.low}, high={self.high}, "
                    f"log={self.log}. Leave out the range or the choices."
                )
            if not self.choices or any(value in self.choices[:place] for place, value in enumerate(self.choices)):
                raise ValueError(
                    f"`choices` must name one value or more, each once. Received: {list(self.choices)}. Give others."
                )
            return self
        if self.low is None or self.high is None:
            raise ValueError(
                f"A range must have low and high. Received: low={self.low}, high={self.high}. Give both, or choices."
            )
        if self.low >= self.high or (self.log and self.low <= 0):
            raise ValueError(
                f"A range must have low below high, and above 0 with log. Received: low={self.low}, high={self.high}, "
                f"log={self.log}. Give other bounds."
            )
        return self

    @property
    def bounds(self) -> tuple[int | float, int | float]:
        """Lowest and highest value of a range.

        Raises:
            ValueError: the values are chosen from.
        """
        if self.low is None or self.high is None:
            raise ValueError(f"A range must have low and high. Received: choices={self.choices}.")
        return self.low, self.high

    @property
    def is_whole(self) -> bool:
        """Whether integers are drawn."""
        return isinstance(self.low, int) and isinstance(self.high, int)


class TuningConfig(Settings):
    """What `kbf tune` searches, by Optuna; no other command reads this."""

    trials: int = Field(20, ge=1, description="Number of trials, including pruned and failed ones.")
    seed: Seed = Field(1, description="Seed of the sampler.")
    startup_trials: int = Field(
        5, ge=1, description="Number of random, unpruned trials before the sampler starts to model the results."
    )
    pruning: bool = Field(
        True,
        description="Prune a trial whose best value is worse than the median of earlier trials at the same step.",
    )
    objective: Objective | None = Field(
        None,
        description="Maximise the dev score of the task, or minimise the loss on held-out records. "
        "Default: the former if the configuration has a section `task`.",
    )
    space: dict[str, Dimension] = Field(
        {},
        description="Setting → its values, such as `finetuning.learning_rate: {low: 1e-5, high: 1e-3, log: true}` or "
        "`pretraining.optimizer: {choices: [adamw, lamb]}`.",
    )

"""Say what training asks of the devices and processes that it is spread over; the answers here are those of one device.

The parts of a batch have different numbers of masked tokens, so a mean of the parts' means would be another loss. How
each backend comes to the loss of the whole batch is said in its own file.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

SEED_STATE = "seed_generator_state"  # the end of the path of the variable in which Keras keeps a seed and its count
STEPS_BETWEEN_ASKS = 8
SEED_DISTANCE = 1_000_003  # between the seeds of two replicas; a prime


class Cluster:
    """One process with one device; subclasses for more.

    Every process of a run makes the same calls in the same order: those to `sum`, `spread_seeds`, `predict` and
    `merge_metrics` may wait for the others.

    Attributes:
        processes: processes of the run.
        rank: number of this one.
        devices: that a batch is spread over, of all processes.
        computes_apart: whether each process has losses and metrics of its own rows only; `feed` then splits batches.
        ask_every_steps: how often the processes ask each other whether to stop, where that waits for the device.
    """

    processes = 1
    rank = 0
    devices = 1
    computes_apart = False
    ask_every_steps = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes logs, checkpoints and the model."""
        return self.rank == 0

    def scope(self) -> AbstractContextManager:
        """Return the context in which the model and its optimizer are made and trained."""
        return nullcontext()

    def losses(self, names) -> dict[str, Any] | None:
        """Return a loss for each output that counts the whole batch; None where the model's own does."""
        return None

    def prepare(self, model) -> None:
        """Make a compiled model step by the gradient of the whole batch."""

    def spread_seeds(self, model) -> None:
        """Give each replica dropout masks of its own, by (seed, step, replica); the first keeps its seeds."""

    def feed(self, model, dataset) -> Any:
        """Turn the batches that this process reads into what `fit` takes."""
        return dataset

    def merge_metrics(self, model) -> None:
        """Make the metrics of this process those of all; only the first process may have had any before its steps."""

    def is_everywhere(self, condition) -> Any:
        """Say of a condition on the device, inside a step, whether each process that computes apart has it."""
        return condition

    def predict(self, model, x: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Return the outputs for the rows that this process has read; every process has the same number."""
        return model.predict_on_batch(x)

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Add float64 arrays of one shape over all processes, in the order of their ranks."""
        return values

    def is_any(self, condition: bool) -> bool:
        """Say whether a condition holds in any process."""
        return condition if self.processes == 1 else bool(self.sum(np.array([float(condition)]))[0])

    def smallest(self, value: float) -> float:
        """Return the smallest of the values that the processes have."""
        mine = np.zeros(self.processes)
        mine[self.rank] = value
        return float(self.sum(mine).min())

    def check_same(self, step: int) -> None:
        """Refuse to go on where the processes have read different checkpoints.

        Raises:
            ValueError: they have.
        """
        if self.processes > 1 and self.smallest(step) != -self.smallest(-step):
            raise ValueError(
                f"All processes of a run must see the same output folder. Received: steps {self.smallest(step):.0f} to "
                f"{-self.smallest(-step):.0f} in their newest checkpoints. Choose a folder that all of them can read."
            )

    def wait(self) -> None:
        """Wait until every process is here."""
        self.is_any(False)

    def close(self) -> None:
        """Leave the other processes."""


SINGLE = Cluster()


def replica_seed(state: np.ndarray, replica: int) -> np.ndarray:
    """Return the state (seed, count) that a replica takes for that of the first one."""
    seed = (int(state[0]) + replica * SEED_DISTANCE) % 2**31
    return np.array([seed, state[1]], state.dtype)


def seed_variables(model) -> list[Any]:
    return [variable for variable in model.non_trainable_variables if variable.path.endswith(SEED_STATE)]

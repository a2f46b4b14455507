"""Interface of distributed training to devices and processes, implemented here for a single device.

The shards of a batch have different numbers of masked tokens, so the mean of their means would be a different loss. The
file of each backend explains how it computes the loss of the whole batch.
"""

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

SEED_STATE = "seed_generator_state"  # suffix of the path of Keras' seed variables (seed, count)
STEPS_BETWEEN_ASKS = 8
JOIN_SECONDS = 300  # for which a process waits for the others at the start; that of jax.distributed.initialize
SEED_DISTANCE = 1_000_003  # between the seeds of two replicas; a prime


class Cluster:
    """One process with one device; subclasses support more.

    Every process of a run must make the same calls in the same order: `sum`, `spread_seeds`, `predict` and
    `merge_metrics` may be collective operations that wait for the others.

    Attributes:
        processes: number of processes of the run.
        rank: index of this process.
        devices: number of devices that a batch is sharded over, in all processes.
        computes_apart: whether each process computes losses and metrics of its own rows only; `feed` then splits
            batches.
        aborts: whether the backend may abort this process when another one is lost.
        skips_steps: whether a step that is not finite can be left out.
        ask_every_steps: steps between the checks of all processes whether to stop; a check may wait for the device.
    """

    processes = 1
    rank = 0
    devices = 1
    computes_apart = False
    aborts = False
    skips_steps = True
    liveness: Any = None  # of several processes: a `liveness.Liveness`
    ask_every_steps = 1

    @property
    def is_first(self) -> bool:
        """Whether this process writes logs, checkpoints and the model."""
        return self.rank == 0

    def scope(self) -> AbstractContextManager:
        """Return the context in which the model and its optimizer are built and trained."""
        return nullcontext()

    def losses(self, names) -> dict[str, Any] | None:
        """Return a loss of the whole batch for each output; None if the model's own losses do that."""
        return None

    def prepare(self, model) -> None:
        """Make the optimizer of a compiled model use the gradient of the whole batch."""

    def spread_seeds(self, model) -> None:
        """Give each replica its own dropout masks, a function of (seed, step, replica); the first keeps its seeds."""

    def feed(self, model, dataset) -> Any:
        """Convert the batches that this process reads into the input of `fit`."""
        return dataset

    def merge_metrics(self, model) -> None:
        """Sum the metric states of all processes; only those of the first may be nonzero before its steps."""

    def is_everywhere(self, condition) -> Any:
        """Return whether a condition, a tensor inside a step, holds in every process with its own losses."""
        return condition

    def predict(self, model, x: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        """Return the outputs for the rows of this process; every process has the same number."""
        return model.predict_on_batch(x)

    def sum(self, values: np.ndarray) -> np.ndarray:
        """Sum float64 arrays of the same shape over all processes, in the order of their ranks."""
        return values

    def is_any(self, condition: bool) -> bool:
        """Return whether a condition holds in any process."""
        return condition if self.processes == 1 else bool(self.sum(np.array([float(condition)]))[0])

    def smallest(self, value: float) -> float:
        """Return the minimum of a value over all processes."""
        mine = np.zeros(self.processes)
        mine[self.rank] = value
        return float(self.sum(mine).min())

    def check_same(self, step: int) -> None:
        """Check that all processes have read the same checkpoint.

        Raises:
            ValueError: they have not.
        """
        if self.processes > 1 and self.smallest(step) != -self.smallest(-step):
            raise ValueError(
                f"All processes of a run must see the same output folder. Received: steps {self.smallest(step):.0f} to "
                f"{-self.smallest(-step):.0f} in their newest checkpoints. Choose a folder that all of them can read."
            )

    def wait(self) -> None:
        """Wait until every process has called this (a barrier)."""
        self.is_any(False)

    def find_loss(self, error: Exception) -> str | None:
        """Return the reason in an error which means that another process ended or cannot be reached; None in others."""
        return None

    def leave(self, failed: bool = False) -> None:
        """Leave the process group; say to the others whether by an error."""
        if self.liveness is not None:
            self.liveness.leave(failed)
        self.close()

    def close(self) -> None:
        """Release the process group of the backend."""


SINGLE = Cluster()


_REASON = re.compile(r"connection (?:closed|reset|refused)(?: by peer)?|broken pipe|timed out|timeout", re.IGNORECASE)


def find_reason(error: Exception) -> str:
    """Return why a connection ended, out of the long messages of the libraries for collective operations."""
    found = _REASON.search(str(error))
    return found[0] if found else f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"


def replica_seed(state: np.ndarray, replica: int) -> np.ndarray:
    """Return the seed state (seed, count) of a replica, derived from that of the first."""
    seed = (int(state[0]) + replica * SEED_DISTANCE) % 2**31
    return np.array([seed, state[1]], state.dtype)


def seed_variables(model) -> list[Any]:
    return [variable for variable in model.non_trainable_variables if variable.path.endswith(SEED_STATE)]

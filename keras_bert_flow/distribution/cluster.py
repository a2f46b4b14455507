"""Interface of training on devices and processes, for a single one here, and noticing lost processes.

The shards of a batch have different numbers of masked tokens, so the mean of their means would be a different loss. The
file of each backend explains how it computes the loss of the whole batch.
"""

import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any

import numpy as np

from keras_bert_flow.config.pipeline import PipelineConfig

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
        strategy: the backend's own object for the devices; None for a single one.
        make_loss: makes the loss of one output over the whole batch; None if the model's own losses do that.
        losing_errors: kind of error → what its message then holds: those which mean that another process ended or
            cannot be reached.
    """

    processes = 1
    rank = 0
    devices = 1
    computes_apart = False
    aborts = False
    skips_steps = True
    liveness: Any = None  # of several processes: a `liveness.Liveness`
    ask_every_steps = 1
    strategy: Any = None
    make_loss: Callable[[], Any] | None = None
    losing_errors: Mapping[type[Exception], re.Pattern] = {}

    @property
    def is_first(self) -> bool:
        """Whether this process writes logs, checkpoints and the model."""
        return self.rank == 0

    def scope(self) -> AbstractContextManager:
        """Return the context in which the model and its optimizer are built and trained."""
        return nullcontext() if self.strategy is None else self.strategy.scope()

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
        is_loss = any(isinstance(error, kind) and said.search(str(error)) for kind, said in self.losing_errors.items())
        return find_reason(error) if is_loss else None

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


# Notice at once, on every backend, that another process of a run has ended.
#
# Each process holds a connection to the first one, which the system closes when a process dies, however it dies.
# Without it, collective operations of JAX and TensorFlow wait for minutes, or abort the process with a C++ stack.

CONNECT_SECONDS = 10.0
FAILED_SECONDS = 60.0  # for the others to end by themselves after one failed, often by an error that they share
_HELLO_BYTES = 8
_DONE, _FAILED = b".", b"!"


class Liveness:
    """Connections between the first process of a run and each other one.

    Where they cannot be made, as behind a firewall, nothing is watched, and a loss shows as the backend tells it.

    Args:
        host: address of the first process.
        on_loss: called in another thread with what was lost, once.
        grace_seconds: time for the interrupted operation to raise an error before `on_loss` is called.
    """

    def __init__(self, cluster: Cluster, host: str, on_loss: Callable[[str], None], grace_seconds: float):
        self._on_loss, self._grace_seconds = on_loss, grace_seconds
        self._has_left = threading.Event()
        self._connections = _connect(cluster, host)  # rank → connection
        if self._connections:
            threading.Thread(target=self._watch, name="liveness", daemon=True).start()

    def leave(self, failed: bool = False) -> None:
        """Tell the others that this process ends, as planned or by an error that they may share."""
        self._has_left.set()
        for connection in self._connections.values():
            with suppress(OSError):
                connection.sendall(_FAILED if failed else _DONE)
                connection.shutdown(socket.SHUT_WR)

    def _watch(self) -> None:
        ranks = {connection: rank for rank, connection in self._connections.items()}
        while ranks:
            for connection in select.select(list(ranks), [], [])[0]:
                said = b""
                with suppress(OSError):  # a connection that was reset is lost, too
                    said = connection.recv(1)
                if said == _DONE:
                    del ranks[connection]
                    continue
                if not self._has_left.wait(FAILED_SECONDS if said == _FAILED else self._grace_seconds):
                    self._on_loss(f"process {ranks[connection]} {'failed' if said == _FAILED else 'is gone'}")
                return


def _connect(cluster: Cluster, host: str) -> dict[int, socket.socket]:
    """Connect the others to the first process; return {} in all processes unless all are connected.

    A random token, which only the processes of the run have, keeps others out.
    """
    listener = None
    if cluster.is_first:
        listener = socket.create_server(("", 0), backlog=cluster.processes)
    given = [listener.getsockname()[1], int.from_bytes(os.urandom(6), "big")] if listener else [0, 0]
    port, token = map(int, cluster.sum(np.array(given, np.float64)))  # exact: below 2**53
    connections: dict[int, socket.socket] = {}
    with suppress(OSError):
        if listener is None:
            connection = socket.create_connection((host, port), CONNECT_SECONDS)
            connection.settimeout(None)
            connection.sendall(cluster.rank.to_bytes(2, "big") + token.to_bytes(_HELLO_BYTES - 2, "big"))
            connections[0] = connection
        else:
            with listener:
                connections = _accept(listener, cluster.processes, token)
    if cluster.is_any(len(connections) < (1 if listener is None else cluster.processes - 1)):
        for connection in connections.values():
            connection.close()
        return {}
    return connections


def _accept(listener: socket.socket, processes: int, token: int) -> dict[int, socket.socket]:
    connections: dict[int, socket.socket] = {}
    deadline = time.monotonic() + CONNECT_SECONDS
    while len(connections) < processes - 1 and (left := deadline - time.monotonic()) > 0:
        listener.settimeout(left)
        with suppress(OSError):
            connection, _ = listener.accept()
            connection.settimeout(left)
            hello = connection.recv(_HELLO_BYTES, socket.MSG_WAITALL)
            if hello[2:] == token.to_bytes(_HELLO_BYTES - 2, "big"):
                connection.settimeout(None)
                connections[int.from_bytes(hello[:2], "big")] = connection
            else:
                connection.close()
    return connections


# Check that batches divide evenly over devices; importable without a backend.

DATA_PARALLEL, MODEL_PARALLEL, TPU = "data_parallel", "model_parallel", "tpu"


def check_devices(config: PipelineConfig, backend: str) -> None:
    """Check what can be checked of the section `distribution` before devices are detected.

    Raises:
        ValueError: the backend does not support it, or a batch does not divide over the requested number of devices.
    """
    settings = config.distribution
    check_kind(settings.kind, backend)
    if settings.devices is not None and settings.kind != "single":
        check_batches(config, max(1, settings.devices // (settings.model_parallel or 1)))
    if backend == "torch":
        check_torch_processes(settings.kind, settings.devices, int(os.environ.get("WORLD_SIZE", "1")))


def check_kind(kind: str, backend: str) -> None:
    """Raise ValueError for a kind of distribution that the backend does not support."""
    if kind == MODEL_PARALLEL and backend != "jax":
        raise ValueError(
            f"`distribution.kind: model_parallel` needs jax. Received: backend={backend}. Choose data_parallel."
        )
    if kind == TPU and backend == "torch":
        raise ValueError(
            "`distribution.kind: tpu` needs jax or tensorflow. Received: backend=torch. Choose another kind."
        )


def check_torch_processes(kind: str, devices: int | None, processes: int) -> None:
    """Raise ValueError for several devices in one process, since PyTorch uses one device per process."""
    if processes == 1 and (kind == DATA_PARALLEL or (devices or 1) > 1):
        raise ValueError(
            f"With torch each device needs a process. Received: distribution.kind={kind} in one process. "
            "Start `torchrun --nproc-per-node N -m keras_bert_flow pretrain ...`, or set distribution.kind=auto."
        )


def check_batches(config: PipelineConfig, devices: int) -> None:
    """Check that the accumulated parts of each batch divide evenly over the devices.

    Both phases are checked up front: the second may begin days after the first.

    Raises:
        ValueError: they do not.
    """
    for phase, section in zip(config.phases, ("pretraining", "second_phase"), strict=False):
        batch_size, parts = phase.pretraining.batch_size, phase.pretraining.accumulate_batches
        if batch_size % (parts * devices):
            of_parts = f" and accumulate_batches={parts}" if parts > 1 else ""
            size = max(1, round(batch_size / (parts * devices))) * parts * devices
            raise ValueError(
                f"Each device must get as many sequences. Received: {section}.batch_size={batch_size} for {devices} "
                f"devices{of_parts}. Try batch_size={size}, or set distribution.devices or distribution.kind=single."
            )

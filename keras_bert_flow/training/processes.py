"""Multi-process training: join the processes, check that they run the same, and publish from the first only."""

import hashlib
import logging
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.console.interrupts import PROCESS_LOST, leave_at_once
from keras_bert_flow.distribution.cluster import JOIN_SECONDS, Cluster, Liveness, find_reason
from keras_bert_flow.distribution.starting import find_meeting, start_cluster
from keras_bert_flow.files.inputs import NOTHING_HELD, InputStates
from keras_bert_flow.files.outputs import work_folder
from keras_bert_flow.models.sizes import resolve_shape
from keras_bert_flow.results.artifacts import canonical_json, removed_on_leaving
from keras_bert_flow.results.publishing import Work, published
from keras_bert_flow.results.stages.keys import Stage
from keras_bert_flow.training.loop.logs import Interrupted

GRACE_SECONDS = 5.0  # for an operation that waits for a lost process to raise an error
TELL_SECONDS = 5.0  # of waiting, after which the process says for whom
_IN_USE = re.compile(r"EADDRINUSE|address (?:is )?already in use", re.IGNORECASE)
_logger = logging.getLogger(__name__)


class LostProcess(Exception):
    """Another process of a run ended, cannot be reached, or never came; the run resumes from its newest checkpoint."""


def join_cluster(config: PipelineConfig, vocabulary_size: int, callbacks: Sequence = ()) -> Cluster:
    """Set up and return the devices and processes of pre-training.

    Raises:
        LostProcess: the other processes did not come.
        ValueError: they do not support the configuration; see `start_cluster`.
    """
    with _waiting_for_others():
        cluster = start_cluster(config, resolve_shape(config.model, vocabulary_size))
    if callbacks and cluster.processes > 1:
        raise ValueError(
            f"Callbacks need a single process. Received: {len(callbacks)} in {cluster.processes} processes. "
            "Leave them out."
        )
    if cluster.processes > 1 and (meeting := find_meeting()):
        host = meeting.address.rpartition(":")[0]
        cluster.liveness = Liveness(cluster, host, partial(_end, cluster), 0.0 if cluster.aborts else GRACE_SECONDS)
    return cluster


def _end(cluster: Cluster, loss: str) -> None:
    """End this process from the thread that watches the others: its own waits for one of them in a C++ call."""
    sys.stderr.write(f"kbf: {_describe_loss(cluster, loss)}\n")
    leave_at_once(PROCESS_LOST)


def _describe_loss(cluster: Cluster, reason: str) -> str:
    return (
        f"Another of the {cluster.processes} processes of this run ended or cannot be reached. Received: {reason}. "
        "Run the same command again in each process to resume from the newest checkpoint."
    )


@contextmanager
def _waiting_for_others() -> Iterator[None]:
    """Say for whom this process waits, and turn the errors of a meeting that fails into one line."""
    meeting = find_meeting()
    if meeting is None:
        yield
        return
    place = f"{meeting.processes} processes at {meeting.address}, of which this is number {meeting.rank}"
    patience = threading.Timer(
        TELL_SECONDS, lambda: _logger.warning("Waiting for the other processes: %s. Start them all.", place)
    )
    patience.daemon = True
    patience.start()
    try:
        yield
    except (RuntimeError, OSError) as error:
        if _IN_USE.search(str(error)):
            raise ValueError(
                f"The first process of a run must be able to listen at its address. Received: {meeting.address}, which "
                "is in use. Start each process once, or choose another port."
            ) from error
        raise LostProcess(
            f"All processes of a run must meet within {JOIN_SECONDS} s. Received: {find_reason(error)}, for {place}. "
            "Start them all with the same command."
        ) from error
    finally:
        patience.cancel()


def check_same_run(cluster: Cluster, facts: Mapping[str, Any]) -> None:
    """Check that all processes have the same configuration and inputs; otherwise they would hang or learn differently.

    Args:
        facts: JSON values, with the same names in all processes.
    Raises:
        ValueError: a fact differs.
    """
    if cluster.processes == 1:
        return
    digests = np.zeros((cluster.processes, len(facts)))
    digests[cluster.rank] = [
        int(hashlib.sha256(canonical_json(fact).encode()).hexdigest()[:12], 16)  # 48 bits, exact in float64
        for fact in facts.values()
    ]
    columns = zip(facts, cluster.sum(digests).T, strict=True)
    names = [name for name, column in columns if len(set(column.tolist())) > 1]
    if names:
        raise ValueError(
            f"All processes of a run must be given the same. Received: another {', '.join(names)} in some of "
            f"{cluster.processes}. Start each with the same configuration, files and versions."
        )


@contextmanager
def published_together(
    cluster: Cluster,
    output: str | Path,
    stage: Stage,
    find_key: Callable[[Mapping[str, Any]], str],
    inputs: InputStates = NOTHING_HELD,
    scratch: str | None = None,
) -> Iterator[Work | None]:
    """Yield the work that makes a result in all processes, and publish it from the first; None if the result exists.

    All processes must see the work folder next to `output`: they read the same checkpoint when a run is resumed.

    Args:
        find_key, inputs, scratch: see `results.publishing.published`.
    Raises:
        LostProcess: another process ended.
    """
    try:
        if cluster.is_first:
            has_told = False
            try:
                with published(output, stage.name, find_key, True, scratch, inputs, stage.revision) as work:
                    has_told = True
                    cluster.is_any(work is not None)
                    yield work
            finally:
                if not has_told:  # the work could not begin
                    cluster.is_any(False)
            if work is not None:
                cluster.wait()
        elif cluster.is_any(False):
            with tempfile.TemporaryDirectory(prefix="kbf-") as folder, removed_on_leaving(folder):
                yield Work(work_folder(output), Path(folder))
            cluster.wait()
        else:
            yield None
    except BaseException as error:
        cluster.leave(failed=not isinstance(error, Interrupted))  # all stop together, and the first may save for long
        if isinstance(error, Exception) and (reason := cluster.find_loss(error)):
            raise LostProcess(_describe_loss(cluster, reason)) from error
        raise
    cluster.leave()

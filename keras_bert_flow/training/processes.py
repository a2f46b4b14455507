"""Multi-process training: join the processes, check that they run the same, and publish from the first only."""

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_flow.artifacts import canonical_json, removed_on_leaving
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.distribution.cluster import Cluster
from keras_bert_flow.distribution.starting import start_cluster
from keras_bert_flow.models.sizes import resolve_shape
from keras_bert_flow.outputs import work_folder
from keras_bert_flow.records.publish import Contents


def join_cluster(config: PipelineConfig, vocabulary_size: int, callbacks: Sequence = ()) -> Cluster:
    """Set up and return the devices and processes of pre-training.

    Raises:
        ValueError: they do not support the configuration; see `start_cluster`.
    """
    cluster = start_cluster(config, resolve_shape(config.model, vocabulary_size))
    if callbacks and cluster.processes > 1:
        raise ValueError(
            f"Callbacks need a single process. Received: {len(callbacks)} in {cluster.processes} processes. "
            "Leave them out."
        )
    return cluster


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


def publish_together(
    cluster: Cluster,
    output: str | Path,
    build: Callable[[Path, Path], Contents],
    publish_result: Callable[[Callable[[Path], Contents]], Path],
) -> Path:
    """Build a result in all processes, publish it from the first, and return its folder in each process.

    All processes must see the work folder next to `output`: they read the same checkpoint when a run is resumed.

    Args:
        build: called in each process with the work folder, and a folder for files that only the first process keeps.
        publish_result: publishes the result of a function that builds it in a work folder.
    """
    try:
        if cluster.is_first:
            return _lead(cluster, build, publish_result)
        if cluster.is_any(False):
            with tempfile.TemporaryDirectory(prefix="kbf-") as folder, removed_on_leaving(folder):
                build(work_folder(output), Path(folder))
            cluster.wait()
        return Path(output)
    finally:
        cluster.close()


def _lead(cluster: Cluster, build, publish_result) -> Path:
    has_begun = False

    def begin(work: Path) -> Contents:
        nonlocal has_begun
        has_begun = True
        cluster.is_any(True)
        return build(work, work)

    try:
        path = publish_result(begin)
    finally:
        if not has_begun:  # the result already exists, or publishing failed
            cluster.is_any(False)
    if has_begun:
        cluster.wait()
    return path

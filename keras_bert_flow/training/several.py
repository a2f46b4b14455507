"""Publish a result that several processes compute together: the first one writes it, the others only compute."""

import tempfile
from collections.abc import Callable
from pathlib import Path

from keras_bert_flow.artifacts import work_folder
from keras_bert_flow.distribution.cluster import Cluster
from keras_bert_flow.records.publish import Contents


def publish_together(
    cluster: Cluster,
    output: str | Path,
    build: Callable[[Path, Path], Contents],
    publish_result: Callable[[Callable[[Path], Contents]], Path],
) -> Path:
    """Return the folder of a result once it is there, in each of its processes.

    All processes must see the work folder beside `output`: they read one checkpoint when a run goes on.

    Args:
        build: takes the work folder, and the folder for what only the first process is to keep; called in each process.
        publish_result: publishes what the function that it is given builds in a work folder.
    """
    try:
        if cluster.is_first:
            return _lead(cluster, build, publish_result)
        if cluster.is_any(False):
            with tempfile.TemporaryDirectory(prefix="kbf-") as folder:
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
        if not has_begun:  # it is there already, or cannot be
            cluster.is_any(False)
    if has_begun:
        cluster.wait()
    return path

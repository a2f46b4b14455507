"""Processes that watch each other without Keras: what `multiprocessing` imports in each of them."""

import os
import signal
import time

import numpy as np

from keras_bert_flow.distribution import cluster as liveness
from keras_bert_flow.distribution.cluster import Cluster
from tests.patience import PATIENCE_SECONDS

WIDTH = 4  # of a row of shared memory


class Meeting(Cluster):
    """Processes on this machine that add up their values in shared memory."""

    processes = 3

    def __init__(self, rank, barrier, shared):
        self.rank, self._barrier, self._shared = rank, barrier, shared

    def sum(self, values):
        self._barrier.wait(PATIENCE_SECONDS)
        self._shared[self.rank * WIDTH : self.rank * WIDTH + len(values)] = values.tolist()
        self._barrier.wait(PATIENCE_SECONDS)
        table = np.array(self._shared[:]).reshape(self.processes, WIDTH)
        self._barrier.wait(PATIENCE_SECONDS)
        return table.sum(axis=0)[: len(values)]


def attend(rank, barrier, shared, told, ends):
    """Be one of three processes; the one that `ends` names ends first, as it says, once all are connected."""
    cluster = Meeting(rank, barrier, shared)
    liveness.FAILED_SECONDS = 0.1
    watch = liveness.Liveness(cluster, "127.0.0.1", lambda loss: told.put((rank, loss)), 0.0)
    cluster.wait()
    victim, how = ends
    if rank == victim and how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if rank == victim:
        watch.leave(how == "failed")
    else:
        time.sleep(1.0)  # in which the watching thread is told
        watch.leave()

"""Notice at once, on every backend, that another process of a run has ended.

Each process holds a connection to the first one, which the system closes when a process dies, however it dies. Without
it, collective operations of JAX and TensorFlow wait for minutes, or abort the process with a C++ stack.
"""

import os
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from keras_bert_flow.distribution.cluster import Cluster

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
            connections = _call(host, port, cluster.rank, token)
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


def _call(host: str, port: int, rank: int, token: int) -> dict[int, socket.socket]:
    connection = socket.create_connection((host, port), CONNECT_SECONDS)
    connection.settimeout(None)
    connection.sendall(rank.to_bytes(2, "big") + token.to_bytes(_HELLO_BYTES - 2, "big"))
    return {0: connection}

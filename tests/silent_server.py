"""Servers that make a connection and never answer, or answer so slowly that no timeout between two bytes helps."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

DRIP_SECONDS = 0.05
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 1000000\r\n\r\n" + b" " * 1_000_000


@contextmanager
def silent_server(drips: bool = False) -> Iterator[str]:
    """Listen on a port of this machine; yield its address as HOST:PORT.

    Args:
        drips: answer each request byte by byte, for hours.
    """
    connections, ended = [], threading.Event()

    def answer(connection: socket.socket) -> None:
        with suppress(OSError):
            connection.recv(1 << 16)
            for byte in ANSWER:
                if ended.is_set():
                    return
                connection.sendall(bytes([byte]))
                time.sleep(DRIP_SECONDS)

    def accept(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                connection, _ = server.accept()
                connections.append(connection)
                if drips:
                    threading.Thread(target=answer, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, args=(server,), daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        ended.set()
        server.shutdown(socket.SHUT_RDWR)
    for connection in connections:
        connection.close()

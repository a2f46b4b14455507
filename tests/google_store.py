"""An emulator of Google's object store on this machine."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.patience import read_port

SERVER = """
import os, sys, threading
from gcp_storage_emulator.server import create_server
server = create_server("127.0.0.1", 0, in_memory=True, default_bucket="bucket")
server.start()
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(server._api._httpd.socket.getsockname()[1]))
os.rename(sys.argv[1] + ".new", sys.argv[1])
threading.Event().wait()
"""


@contextmanager
def google_store(folder: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Start an emulator with an empty bucket; yield the bucket's address, and the environment in which it is found."""
    port = folder / "gs-port"
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(port)], stderr=subprocess.DEVNULL)
    try:
        yield "gs://bucket", {"STORAGE_EMULATOR_HOST": f"http://127.0.0.1:{read_port(port, server)}"}
    finally:
        server.kill()
        server.wait()

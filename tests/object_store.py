"""An S3 server of moto's on this machine, and what lies in its bucket."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.patience import read_port

BUCKET = "bucket"
SERVER = """
import os, sys, threading
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(server.get_host_and_port()[1]))
os.rename(sys.argv[1] + ".new", sys.argv[1])
threading.Event().wait()
"""


@contextmanager
def object_store(folder: Path) -> Iterator[dict[str, str]]:
    """Start a server with an empty bucket, and yield the environment in which boto3 finds it."""
    port_file = folder / "s3-port"
    server = subprocess.Popen([sys.executable, "-c", SERVER, str(port_file)], stderr=subprocess.DEVNULL)
    try:
        environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{read_port(port_file, server)}",
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
        }
        client(environment).create_bucket(Bucket=BUCKET)
        yield environment
    finally:
        server.kill()
        server.wait()


def client(environment: dict[str, str]):
    import boto3

    return boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        aws_access_key_id="test",
        aws_secret_access_key="test",
        region_name=environment["AWS_DEFAULT_REGION"],
    )


def read_bucket(environment: dict[str, str]) -> dict[str, bytes]:
    """Return the content of every object by its key."""
    store = client(environment)
    return {key: store.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in list_bucket(environment)}


def list_bucket(environment: dict[str, str]) -> list[str]:
    """Return the key of every object."""
    pages = client(environment).get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    return [entry["Key"] for page in pages for entry in page.get("Contents", ())]

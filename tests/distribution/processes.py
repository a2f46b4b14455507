"""Start the child processes of a run, by the means of each backend, on free ports here, with bounded waits."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

from tests.patience import PATIENCE_SECONDS

CHILD = ("-m", "tests.distribution.child")


def start_children(backend, folder, processes=1, devices=1, lost=(), **told):
    """Train in child processes, and return what each saw, the first one's first; with `lost`, the others' statuses.

    Args:
        folder: for what they see, and what each printed in `NUMBER.log`; made.
        devices: virtual ones of each process.
        lost: numbers of those that will be killed.
        told: see `child`.
    """
    folder.mkdir(parents=True)
    told |= {"devices": devices, "processes": processes, "seen": str(folder)}
    python = (sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={processes}", *torch_address())
    if backend == "torch" and processes > 1 and not lost:
        commands, environments = [(*python, *CHILD)], [{}]
    else:
        commands = [(sys.executable, *CHILD)] * processes
        environments = list(name_processes(backend, processes))
    common = {"KERAS_BACKEND": backend, "OMP_NUM_THREADS": "1"}
    if backend == "jax":
        flags = os.environ.get("XLA_FLAGS", "")
        common["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count={devices}"
    children = []
    for number, (command, environment) in enumerate(zip(commands, environments, strict=True)):
        with open(folder / f"{number}.log", "wb") as log:
            children.append(
                subprocess.Popen(
                    [*command, json.dumps(told)],
                    cwd=Path(__file__).parents[2],
                    env=os.environ | common | environment,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        for child in children:
            child.wait(PATIENCE_SECONDS)
    finally:
        for child in children:
            child.kill()  # itself only; torchrun's children end with it
            child.wait()
    if lost:
        return [child.returncode for number, child in enumerate(children) if number not in lost]
    logs = "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(folder.glob("*.log")))
    seen = [folder / f"{number}.json" for number in range(processes)]
    assert all(path.is_file() for path in seen), logs
    seen = [json.loads(path.read_text()) for path in seen]
    assert len({part["status"] for part in seen}) == 1, logs
    return seen


def name_processes(backend, processes):
    """Yield the variables that tell each process of the others."""
    if processes == 1:
        yield {}
        return
    ports = free_ports(processes)
    for number in range(processes):
        if backend == "torch":
            address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(ports[0])}
            yield address | {"RANK": str(number), "LOCAL_RANK": str(number), "WORLD_SIZE": str(processes)}
        elif backend == "tensorflow":
            cluster = {"worker": [f"127.0.0.1:{port}" for port in ports]}
            yield {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": "worker", "index": number}})}
        else:
            names = {"JOB_ADDRESSES": f"127.0.0.1:{ports[0]}", "NUM_PROCESSES": processes, "PROCESS_ID": number}
            yield {f"KERAS_DISTRIBUTION_{name}": str(value) for name, value in names.items()}


def torch_address():
    return "--master-addr=127.0.0.1", f"--master-port={free_ports(1)[0]}"


def free_ports(count):
    """Find ports that nobody listens at; all are held until the last is found."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [held.getsockname()[1] for held in sockets]
    finally:
        for held in sockets:
            held.close()

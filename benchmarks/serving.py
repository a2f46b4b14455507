"""Time `kbf serve-model` beside a plain transformers pipeline behind the same server, and print a Markdown table.

    python -m benchmarks.serving
    python -m benchmarks.serving --model out/finetuned/pretrained/seed-1/model --clients 1 8 32
    python -m benchmarks.serving --onnx --size tiny

Without `--model` it is a classifier with random weights, of the size asked for; see `benchmarks/prediction.py`, also
for the texts. The other side is FastAPI and uvicorn as well, and calls `pipeline("text-classification")` with the text
of each request in FastAPI's threads. Each client sends one text, waits for its answer and sends the next. Servers are
processes of their own with as many threads as are asked for, warmed up by 20 requests; they take turns, A B A B, and
the figures are medians of the rounds. An answer other than status 200 ends the benchmark.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx

from benchmarks.prediction import add_model_arguments, find_examples, make_model

OURS, EXPORTED, THEIRS = "kbf serve-model", "kbf serve-model, ONNX Runtime", "transformers pipeline"
WARM_UP = 20
START_SECONDS = 180

PIPELINE = """
import sys
import torch, uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from transformers import pipeline
torch.set_num_threads(int(sys.argv[2]))
classify = pipeline("text-classification", model=sys.argv[1], top_k=None)
app = FastAPI()
class Texts(BaseModel):
    texts: list[str]
@app.post("/predict")
def predict(body: Texts):
    return {"predictions": classify(body.texts, truncation=True, max_length=int(sys.argv[4]))}
@app.get("/health")
def health():
    return {}
uvicorn.run(app, port=int(sys.argv[3]), log_level="warning", access_log=False)
"""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add_model_arguments(parser)
    parser.add_argument("--backend", default="torch", help="of kbf serve-model")
    parser.add_argument("--onnx", action="store_true", help="also serve the model exported to ONNX")
    parser.add_argument("--clients", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--requests", type=int, default=200, help="in a round, of all clients")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1, help="of each server")
    parser.add_argument("--port", type=int, default=8701, help="the first of three")
    return parser.parse_args()


def start_servers(arguments: argparse.Namespace, model: Path, folder: Path) -> dict[str, tuple[subprocess.Popen, str]]:
    """Return name → (process, address)."""
    threads = str(arguments.threads)
    environment = os.environ | {"KERAS_BACKEND": arguments.backend, "OMP_NUM_THREADS": threads, "KBF_PROGRESS": "off"}
    kbf = [sys.executable, "-m", "keras_bert_flow"]
    ports = [str(arguments.port + place) for place in range(3)]
    commands = {OURS: [*kbf, "serve-model", str(model), "--only", "predict", "--port", ports[0]]}
    if arguments.onnx:
        command = [*kbf, "export", str(model), str(folder / "onnx"), "--format", "onnx"]
        subprocess.run(command, check=True, env=environment)
        commands[EXPORTED] = [*kbf, "serve-model", str(folder / "onnx"), "--port", ports[1], "--threads", threads]
    length = str(arguments.sequence_length)
    commands[THEIRS] = [sys.executable, "-c", PIPELINE, str(model), threads, ports[2], length]
    places = dict(zip((OURS, EXPORTED, THEIRS), ports, strict=True))
    return {
        name: (subprocess.Popen(command, env=environment), f"http://127.0.0.1:{places[name]}")
        for name, command in commands.items()
    }


def wait_for(process: subprocess.Popen, address: str) -> None:
    """Wait until a server answers."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            if httpx.get(f"{address}/health", timeout=5).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.2)
    raise SystemExit(f"A server did not answer within {START_SECONDS} s: {address}")


def measure(address: str, texts: list[str], clients: int) -> tuple[float, list[float]]:
    """Send each text in a request of its own from so many clients; return requests per second, and seconds of each."""

    def ask(some: list[str]) -> list[float]:
        seconds = []
        with httpx.Client(timeout=60) as client:
            for text in some:
                started = time.perf_counter()
                client.post(f"{address}/predict", json={"texts": [text]}).raise_for_status()
                seconds.append(time.perf_counter() - started)
        return seconds

    started = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        seconds = [each for part in pool.map(ask, (texts[place::clients] for place in range(clients))) for each in part]
    return len(texts) / (time.perf_counter() - started), sorted(seconds)


def main() -> None:
    arguments = parse_arguments()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        texts = [example.text for example in find_examples(arguments, folder)]
        arguments.backend = [arguments.backend]  # as `make_model` takes it
        model = Path(arguments.model) if arguments.model else make_model(arguments, texts, folder)
        arguments.backend = arguments.backend[0]
        servers = start_servers(arguments, model, folder)
        try:
            for process, address in servers.values():
                wait_for(process, address)
                measure(address, texts[:WARM_UP], 4)
            print(
                "| clients | server | requests per second | ms, median | ms, 95 % | ratio |\n"
                "|---:|---|---:|---:|---:|---:|"
            )
            for clients in arguments.clients:
                found: dict[str, list[tuple[float, list[float]]]] = {server: [] for server in servers}
                for number in range(arguments.rounds):
                    first = number * arguments.requests % len(texts)
                    some = (texts[first:] + texts)[: arguments.requests]
                    for server, (_, address) in servers.items():
                        found[server].append(measure(address, some, clients))
                rates = {server: statistics.median(rate for rate, _ in rounds) for server, rounds in found.items()}
                for server, rounds in found.items():
                    middle, late = (
                        statistics.median(seconds[int(len(seconds) * share)] for _, seconds in rounds) * 1e3
                        for share in (0.5, 0.95)
                    )
                    ratio = rates[server] / rates[THEIRS]
                    print(f"| {clients} | {server} | {rates[server]:,.0f} | {middle:.1f} | {late:.1f} | {ratio:.2f} |")
        finally:
            for process, _ in servers.values():
                process.terminate()
            for process, _ in servers.values():
                process.wait(30)


if __name__ == "__main__":
    main()

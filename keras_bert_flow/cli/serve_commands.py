"""The commands that serve: Prefect's server, UI and worker on this machine, and a model over HTTP."""

import importlib.util
import os
import signal
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from keras_bert_flow.cli.application import app
from keras_bert_flow.cli.options import ChosenBackend, fix_backend
from keras_bert_flow.cli.run_commands import find_configs
from keras_bert_flow.console.interrupts import UNATTENDED, ending_with
from keras_bert_flow.console.progress import working
from keras_bert_flow.console.terminal import show
from keras_bert_flow.conversion.directory import check_model_directory
from keras_bert_flow.installed import check_installed
from keras_bert_flow.prediction.load import EMBEDDING, has_task, is_exported, read_kind
from keras_bert_flow.results.artifacts import removed_on_leaving

TOKEN = "KBF_SERVE_TOKEN"
MODEL_STOPPED = "kbf: stopped; the requests that had arrived are answered.\n"
STOPPED = "kbf: stopped; `kbf serve` goes on with the same runs.\n"


@app.command()
def serve(
    configs: Annotated[
        list[Path] | None, typer.Argument(help="Configuration files, one form per file. Default: the quickstart's.")
    ] = None,
    port: Annotated[
        int, typer.Option(min=1, max=65434, help="Port of Prefect's server and UI; reports are served at the next one.")
    ] = 4200,
    parallel: Annotated[int, typer.Option(min=1, help="Maximum number of concurrent runs.")] = 1,
) -> None:
    """Run Prefect's server, its UI and a worker on this machine until Ctrl-C, with one form per configuration."""
    if importlib.util.find_spec("prefect") is None:
        raise ValueError("`kbf serve` needs Prefect. Received: none installed. pip install 'keras-bert-flow[flows]'")
    from flows.server import find_home
    from flows.serving import serve as serve_here

    files = [os.path.relpath(path) for path in configs or (find_configs()["quickstart"],)]
    home = find_home()
    with ending_with((signal.SIGINT, *UNATTENDED), 0, STOPPED):
        serve_here(files, home, port, parallel, show)


@app.command("serve-model")
def serve_model(
    model: Annotated[Path, typer.Argument(help="A model directory, or what `kbf export --format onnx` wrote.")],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for a free one, which is printed.")] = 8000,
    host: Annotated[str, typer.Option(help="Address; others than this machine need a token.")] = "127.0.0.1",
    only: Annotated[
        str | None, typer.Option(help="predict or embed. Default: /embed, and /predict of a fine-tuned model.")
    ] = None,
    max_texts: Annotated[int, typer.Option(min=1, help="Most texts of a request.")] = 256,
    max_waiting: Annotated[
        int, typer.Option(min=1, help="Most texts that wait; further requests are refused with status 503.")
    ] = 1024,
    max_bytes: Annotated[int, typer.Option(min=1024, help="Most bytes of a request.")] = 1 << 20,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="Most seconds until an answer.")] = 30.0,
    onnx: Annotated[
        bool, typer.Option("--onnx", help="Export the model to ONNX first, and serve that: faster on a processor.")
    ] = False,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of ONNX Runtime. Default: its own choice.")
    ] = None,
    backend: ChosenBackend = None,
) -> None:
    """Serve a model over HTTP until Ctrl-C: /predict, /embed, /v1/embeddings (as OpenAI's), /health and /metrics.

    Requests that wait are answered together. With $KBF_SERVE_TOKEN set, each must have the header
    `Authorization: Bearer TOKEN`.
    """
    check_installed(("fastapi", "uvicorn", "prometheus_client"))
    from keras_bert_flow.export.request import check_export
    from keras_bert_flow.export.request import choose_backend as choose_exporter
    from keras_bert_flow.serving.requests import Limits
    from keras_bert_flow.serving.server import ASKED_AS, bind, check_place, load_asked
    from keras_bert_flow.serving.server import serve_model as serve_here

    token = os.environ.get(TOKEN) or None
    check_place(host, token)
    paths = _choose_paths(model, only)
    if is_exported(model):
        check_installed(("onnxruntime",))
    else:
        check_model_directory(model)
    with tempfile.TemporaryDirectory(prefix="kbf-") as place, removed_on_leaving(place):
        outputs = {path: Path(place) / path[1:] for path in paths} if onnx and not is_exported(model) else {}
        if outputs:
            backend = choose_exporter("onnx", backend)
            for path, output in outputs.items():
                check_export(model, output, "onnx", backend, False, ASKED_AS[path], False)
        fix_backend(backend)
        bound = bind(host, port)
        with ending_with((signal.SIGINT, *UNATTENDED), 0, MODEL_STOPPED):
            for path, output in outputs.items():
                with working(f"Exporting {model} for {path}"):
                    from keras_bert_flow.export.export_model import export_model

                    export_model(model, output, "onnx", asked_as=ASKED_AS[path])
            with working(f"Loading {model}"):
                asked = load_asked({path: outputs.get(path, model) for path in paths}, threads)
            limits = Limits(max_bytes, max_texts, max_waiting, seconds)
            parts = model.resolve().parts
            name = "/".join(parts[-3:] if parts[-1] == "model" else parts[-1:])  # of a fine-tuning its last folders
            serve_here(asked, bound, name, limits, token, show)


def _choose_paths(model: Path, only: str | None) -> tuple[str, ...]:
    """Return the paths that a model can be asked at.

    Raises:
        ValueError: it cannot be asked at the one that is given.
    """
    from keras_bert_flow.export.request import find_kind

    if only not in (None, "predict", "embed"):
        raise ValueError(f"--only must be predict or embed. Received: {only}.")
    found: tuple[str, ...]
    if is_exported(model):
        found = ("/embed",) if read_kind(model) == EMBEDDING else ("/predict",)
    else:
        is_task = has_task(model) and find_kind(model) != EMBEDDING
        found = ("/predict", "/embed") if is_task else ("/embed",)
    chosen = tuple(path for path in found if only in (None, path[1:]))
    if not chosen:
        raise ValueError(
            f"A model must be one that can be asked so. Received: --only {only}, and {model} answers "
            f"{' and '.join(found)}. Leave --only out, or fine-tune or export it for that."
        )
    return chosen

"""Load a model once, and serve it over HTTP until a signal arrives."""

import socket
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from keras_bert_flow.prediction.load import ExportedModel, is_exported
from keras_bert_flow.serving.application import Limits

# path → what the model is asked as there
ASKED_AS = {"/predict": "task", "/embed": "sentence_embedding"}
LEAST_TOKEN = 16
# Texts of about 3, 12, 48 and 192 tokens: the widths that a stream of texts is padded to where shapes are compiled.
WARM_UP = tuple("a film " * count for count in (1, 6, 24, 96))
DRAINING_SECONDS = 10


def check_place(host: str, token: str | None) -> None:
    """Check that a server which others can reach has a token.

    Raises:
        ValueError: it has none, or a short one.
    """
    if token is not None and (len(token) < LEAST_TOKEN or not token.isascii() or not token.isprintable()):
        raise ValueError(
            f"A token must be at least {LEAST_TOKEN} printable ASCII characters. Received: one of {len(token)}. "
            "`openssl rand -hex 16` makes one."
        )
    if token is None and not _is_loopback(host):
        raise ValueError(
            f"A server that others can reach must have a token. Received: --host {host}, and no token. Set "
            "$KBF_SERVE_TOKEN, or leave --host out."
        )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def load_asked(folders: Mapping[str, Path], threads: int | None) -> dict[str, Any]:
    """Load what each path asks, and answer a text of each width, so that the first request waits for nothing.

    Args:
        folders: `/predict`, `/embed` or both → a model directory, or what `kbf export` wrote as ONNX.
        threads: of ONNX Runtime.
    Raises:
        FileNotFoundError, ValueError: as for `prediction.load.load`.
    """
    from keras_bert_flow.prediction.load import load
    from keras_bert_flow.serving.application import Asked

    asked = {}
    for path, folder in folders.items():
        options = {"threads": threads} if is_exported(folder) else {}
        model: Any = load(folder, ASKED_AS[path], **options)
        asked[path] = Asked(model.make_example, _answer_with(model), _count_with(model), model.sequence_length)
        if not isinstance(model.model, ExportedModel):
            _warm_up(asked[path])
    return asked


def _answer_with(model: Any) -> Callable:
    def answer(examples):
        return model.answer(list(examples), model.choose_fixed)

    return answer


def _count_with(model: Any) -> Callable[[Any], int]:
    """Return a function that counts the tokens of a single text."""

    def count(example) -> int:
        return min(len(model.tokenizer.encode(example.text)) + 2, model.sequence_length)

    return count


def _warm_up(asked: Any) -> None:
    for text in WARM_UP:
        try:
            example = asked.make_example(text)
        except ValueError:  # a task of several parts; the first request compiles
            return
        asked.answer([example])


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address: before a model is loaded, which takes seconds.

    Raises:
        ValueError: the port is in use, or the host is none of this machine.
    """
    try:
        place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # Of this protocol by name: asyncio sets TCP_NODELAY only then, without which an answer waits 40 ms for the
        # acknowledgement of its headers.
        bound = socket.socket(place[0], socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(place[4])
        return bound
    except OSError as error:
        raise ValueError(
            f"A server must have an address of its own. Received: {host}, port {port}: {error.strerror}. "
            "Give another --port."
        ) from None


def serve_model(
    asked: Mapping[str, Any],
    bound: socket.socket,
    name: str,
    limits: Limits,
    token: str | None = None,
    tell: Callable[[str], object] = lambda line: None,
) -> None:
    """Serve what is loaded until SIGINT or SIGTERM, then answer the requests that have arrived.

    Args:
        asked: see `load_asked`.
        bound: see `bind`.
        name: of the model, in the answers.
        tell: called with a line once the server answers.
    """
    import uvicorn

    from keras_bert_flow.serving.application import make_application

    app = make_application(asked, name, limits, token)
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=DRAINING_SECONDS,
    )
    host, port = bound.getsockname()[:2]
    bound.listen(config.backlog)  # from here on a client is answered, once the event loop runs
    tell(f"http://{f'[{host}]' if ':' in host else host}:{port}")
    uvicorn.Server(config).run(sockets=[bound])

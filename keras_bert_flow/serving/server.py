"""Load a model once, and serve it over HTTP until a signal arrives: predictions, embeddings, health and metrics.

`/v1/embeddings` has the shape of OpenAI's embeddings API, which vector databases and their clients speak:
https://platform.openai.com/docs/api-reference/embeddings.
"""

import asyncio
import base64
import json
import socket
import time
from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal

import numpy as np
import uvicorn
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException as StarletteError

from keras_bert_flow.prediction.load import ExportedModel, is_exported, load
from keras_bert_flow.serving.requests import (
    App,
    Batcher,
    Closed,
    LimitedRequests,
    Limits,
    Overloaded,
    Receive,
    Scope,
    Send,
    describe_refusal,
)

# path → what the model is asked as there
ASKED_AS = {"/predict": "task", "/embed": "sentence_embedding"}
LEAST_TOKEN = 16
# Texts of about 3, 12, 48 and 192 tokens: the widths that a stream of texts is padded to where shapes are compiled.
WARM_UP = tuple("a film " * count for count in (1, 6, 24, 96))
DRAINING_SECONDS = 10
RETRY_SECONDS = 1
UNPARSED = "There was an error parsing the body"  # what FastAPI says of any body but one that is not JSON
BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True)
class Asked:
    """A model that a path asks.

    Attributes:
        make_example: makes an example of an item of a request; its ValueError is told to the client.
        answer: returns one answer per example.
        count: returns the number of tokens of an example, special ones included, as far as the model reads it.
        longest: most tokens of a text; the rest of it is not read.
    """

    make_example: Callable[[Any], Any]
    answer: Callable[[Sequence[Any]], Sequence[Any]]
    count: Callable[[Any], int]
    longest: int


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
    is_local = host == "localhost"
    with suppress(ValueError):  # a name
        is_local = is_local or ip_address(host).is_loopback
    if token is None and not is_local:
        raise ValueError(
            f"A server that others can reach must have a token. Received: --host {host}, and no token. Set "
            "$KBF_SERVE_TOKEN, or leave --host out."
        )


def load_asked(folders: Mapping[str, Path], threads: int | None) -> dict[str, Asked]:
    """Load what each path asks, and answer a text of each width, so that the first request waits for nothing.

    Args:
        folders: `/predict`, `/embed` or both → a model directory, or what `kbf export` wrote as ONNX.
        threads: of ONNX Runtime.
    Raises:
        FileNotFoundError, ValueError: as for `prediction.load.load`.
    """
    asked = {}
    for path, folder in folders.items():
        options = {"threads": threads} if is_exported(folder) else {}
        model: Any = load(folder, ASKED_AS[path], **options)
        asked[path] = _make_asked(model)
        if isinstance(model.model, ExportedModel):
            continue
        for text in WARM_UP:
            try:
                example = asked[path].make_example(text)
            except ValueError:  # a task of several parts; the first request compiles
                break
            asked[path].answer([example])
    return asked


def _make_asked(model: Any) -> Asked:
    def count(example: Any) -> int:  # the tokens of a single text, [CLS] and [SEP] included
        return min(len(model.tokenizer.encode(example.text)) + 2, model.sequence_length)

    return Asked(
        model.make_example,
        lambda examples: model.answer(list(examples), model.choose_fixed),
        count,
        model.sequence_length,
    )


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
    asked: Mapping[str, Asked],
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


# The application, and its answers.


class Texts(BaseModel):
    """Body of `/predict` and `/embed`: texts; for pairs, lists of two; or objects with the names of the parts."""

    model_config = ConfigDict(extra="forbid")
    texts: list[Any] = Field(min_length=1)


class EmbeddingsRequest(BaseModel):
    """Body of `/v1/embeddings`."""

    input: str | list[str]
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = Field(default=None, ge=1, strict=True)  # True is no integer
    user: str | None = None


class Metrics:
    """Counts and durations, for Prometheus."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        options: dict[str, Any] = {"registry": self.registry}
        self.requests = Counter("kbf_requests", "Requests by path and status.", ("path", "status"), **options)
        self.texts = Counter("kbf_texts", "Texts that were answered.", ("path",), **options)
        self.seconds = Histogram("kbf_request_seconds", "Seconds from a request to its answer.", ("path",), **options)
        self.batches = Histogram(
            "kbf_batch_texts", "Texts that a model answered in one call.", ("path",), buckets=BATCH_SIZES, **options
        )
        self.waiting = Gauge("kbf_waiting_texts", "Texts that wait.", ("path",), **options)


def make_application(
    asked: Mapping[str, Asked], name: str, limits: Limits | None = None, token: str | None = None
) -> App:
    """Return the ASGI application.

    Args:
        asked: path, `/predict` or `/embed`, → the model that answers there.
        name: of the model, in the answers.
        token: which every request but `/health` must give; None for none.
    """
    limits, metrics = limits or Limits(), Metrics()
    batchers = {
        path: Batcher(model.answer, most_waiting=limits.waiting, follow=metrics.batches.labels(path).observe)
        for path, model in asked.items()
    }
    for path, batcher in batchers.items():
        metrics.waiting.labels(path).set_function(partial(getattr, batcher, "waiting"))

    @asynccontextmanager
    async def lifespan(app: FastAPI):
        yield
        for batcher in batchers.values():
            await asyncio.to_thread(batcher.close, limits.seconds)

    app = FastAPI(title="kbf serve-model", docs_url=None, redoc_url=None, lifespan=lifespan)

    async def ask(path: str, items: Sequence[Any]) -> list[Any]:
        """Return the answers for the items of a request."""
        if len(items) > limits.texts:
            raise HTTPException(
                413, f"A request must have at most {limits.texts} texts. Received: {len(items)}. Send them in several."
            )
        examples = []
        for number, item in enumerate(items, 1):
            try:
                require_unicode(item)
                examples.append(asked[path].make_example(item))
            except ValueError as error:
                raise HTTPException(422, f"Item {number}: {error}") from None
        try:
            future = batchers[path].submit(examples)
        except Overloaded:
            line = f"At most {limits.waiting:,} texts may wait. Ask again in a moment."
            raise HTTPException(503, line, {"Retry-After": str(RETRY_SECONDS)}) from None
        except Closed:
            raise HTTPException(503, "The server is ending. Ask another one.") from None
        try:
            answers = await asyncio.wait_for(asyncio.wrap_future(future), limits.seconds)
        except TimeoutError:
            line = f"A request must be answered within {limits.seconds:g} seconds. Send fewer texts."
            raise HTTPException(504, line, {"Retry-After": str(RETRY_SECONDS)}) from None
        metrics.texts.labels(path).inc(len(items))
        return answers

    if "/predict" in asked:

        @app.post("/predict")
        async def predict(body: Texts) -> Response:
            return answer_json({"model": name, "predictions": await ask("/predict", body.texts)})

    if "/embed" in asked:

        @app.post("/embed")
        async def embed(body: Texts) -> Response:
            found = await ask("/embed", body.texts)
            return answer_json({"model": name, "embeddings": [answer["embedding"] for answer in found]})

        @app.post("/v1/embeddings")
        async def openai_embeddings(body: EmbeddingsRequest) -> Response:
            texts = [body.input] if isinstance(body.input, str) else body.input
            if not texts:
                raise HTTPException(422, "`input` must hold a text. Received: an empty list.")
            vectors: list[Any] = [cut(answer["embedding"], body.dimensions) for answer in await ask("/embed", texts)]
            if body.encoding_format == "base64":  # of little-endian float32
                vectors = [base64.b64encode(np.asarray(vector, "<f4").tobytes()).decode() for vector in vectors]
            data = [
                {"object": "embedding", "index": index, "embedding": vector} for index, vector in enumerate(vectors)
            ]
            count = sum(asked["/embed"].count(asked["/embed"].make_example(text)) for text in texts)
            usage = {"prompt_tokens": count, "total_tokens": count}
            return answer_json({"object": "list", "data": data, "model": name, "usage": usage})

        @app.get("/v1/models")
        async def models() -> dict[str, Any]:
            return {"object": "list", "data": [{"id": name, "object": "model", "owned_by": "keras-bert-flow"}]}

    @app.get("/health")
    async def health() -> Response:
        is_alive = all(batcher.thread.is_alive() for batcher in batchers.values())
        longest = {path: model.longest for path, model in asked.items()}
        content = {"status": "ok" if is_alive else "broken", "model": name, "paths": sorted(asked), "tokens": longest}
        return JSONResponse(content, 200 if is_alive else 503)

    @app.get("/metrics")
    async def show_metrics() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    @app.exception_handler(StarletteError)
    async def tell(request: Request, error: StarletteError) -> Response:
        line = str(error.detail)
        if error.status_code == 400 and line == UNPARSED:
            error.status_code = 422
            line = describe_body(request.url.path, "bytes that are not UTF-8, too deep a nesting or too long a number")
        if error.status_code == 404:
            line = f"There is no {request.url.path} here. Ask {', '.join([*sorted(asked), '/health', '/metrics'])}."
        return JSONResponse(describe_refusal(error.status_code, line), error.status_code, error.headers)

    @app.exception_handler(RequestValidationError)
    async def tell_invalid(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"][1:] if isinstance(part, str)) or "the body"
        kind = request.headers.get("content-type", "none")
        said = "" if kind.startswith("application/json") else f", as content-type {kind} and not application/json"
        line = describe_body(request.url.path, f"{place}: {first['msg']}{said}")
        return JSONResponse(describe_refusal(422, line), 422)

    @app.exception_handler(Exception)
    async def tell_failed(request: Request, error: Exception) -> Response:
        return JSONResponse(describe_refusal(500, f"The model failed: {type(error).__name__}: {error}"), 500)

    known = {route.path for route in app.routes if isinstance(route, APIRoute)}
    return measure(LimitedRequests(app, limits, token), metrics, known)


def describe_body(path: str, received: str) -> str:
    """Return the line that refuses the body of a request."""
    example = '{"input": "a text"}' if path.startswith("/v1") else '{"texts": ["a text"]}'
    return f"A request must be JSON like {example}. Received: {received}. Correct the body."


def require_unicode(item: Any) -> None:
    """Raise ValueError for a text with half of a surrogate pair, which JSON can encode, as in a table of a task."""
    try:
        json.dumps(item, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        received = ascii(error.object[error.start])
        raise ValueError(
            f"a text must be Unicode. Received: {received}, half of a surrogate pair. Correct it."
        ) from None


def measure(app: App, metrics: Metrics, known: Collection[str]) -> App:
    """Return an application that counts and times each request, also one that is refused before its body is parsed.

    Args:
        known: the paths to tell apart; all others count as `other`.
    """

    async def measured(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        started, path = time.perf_counter(), scope["path"] if scope["path"] in known else "other"

        async def follow(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                metrics.requests.labels(path, str(message["status"])).inc()
                metrics.seconds.labels(path).observe(time.perf_counter() - started)
            await send(message)

        await app(scope, receive, follow)

    return measured


def cut(vector: Sequence[float], dimensions: int | None) -> Sequence[float]:
    """Return the first dimensions of a vector, scaled to length 1 again, as OpenAI's API does.

    Raises:
        HTTPException: it has fewer.
    """
    if dimensions is None or dimensions == len(vector):
        return vector
    if dimensions > len(vector):
        raise HTTPException(422, f"`dimensions` must be at most the model's {len(vector)}. Received: {dimensions}.")
    kept = np.asarray(vector[:dimensions])
    length = float(np.linalg.norm(kept))
    return (kept / length if length else kept).tolist()


def answer_json(content: Any) -> Response:
    """Return a JSON response.

    Raises:
        HTTPException: a number of it is not finite: the model computed no answer.
    """
    try:
        text = json.dumps(content, allow_nan=False, default=_plain)  # ASCII, as a text may have a lone surrogate
    except ValueError:
        raise HTTPException(500, "The model computed NaN or infinity for a text, which is no answer.") from None
    return Response(text, media_type="application/json")


def _plain(value: Any) -> Any:
    """Return the plain form of values of NumPy."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"Object of type {type(value).__name__} is not JSON")

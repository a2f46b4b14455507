"""Requests on their way to a model: who may ask and how much, and batches of those that wait.

Limits are checked before a body is parsed. While a model answers, the next requests gather, and are then answered
together.
"""

import asyncio
import hmac
import json
import threading
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, NamedTuple

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

OPEN_PATHS = ("/health",)  # whoever starts the server asks here, without a token


@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Attributes:
        body_bytes: size of a request.
        texts: number of texts of a request.
        waiting: number of texts that wait, of all requests.
        seconds: for a request to arrive, and again until its answer.
    """

    body_bytes: int = 1 << 20
    texts: int = 256
    waiting: int = 1024
    seconds: float = 30.0


@dataclass(frozen=True)
class LimitedRequests:
    """ASGI middleware that refuses requests without the token, too large ones, and those that arrive too slowly.

    Attributes:
        token: to be given as `Authorization: Bearer TOKEN`; None if nobody needs one.
    """

    app: App
    limits: Limits
    token: str | None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if self.token is not None and scope["path"] not in OPEN_PATHS:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self.token.encode()):
                line = "A request must have the token: `Authorization: Bearer TOKEN`."
                await refuse(send, HTTPStatus.UNAUTHORIZED, line)
                return
        try:
            async with asyncio.timeout(self.limits.seconds):
                body = await self._read(headers, receive)
        except TimeoutError:
            line = f"A request must arrive within {self.limits.seconds:g} seconds."
            await refuse(send, HTTPStatus.REQUEST_TIMEOUT, line)
            return
        except ValueError:
            line = f"A request must have at most {self.limits.body_bytes:,} bytes. Send the texts in several."
            await refuse(send, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, line)
            return
        if body is None:  # the client is gone
            return
        messages: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> MutableMapping[str, Any]:
            return messages.pop(0) if messages else await receive()

        await self.app(scope, replay, send)

    async def _read(self, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        """Read the body of a request; None if the client has left.

        Raises:
            ValueError: it is too large.
        """
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self.limits.body_bytes:
            raise ValueError
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self.limits.body_bytes:
                raise ValueError
            if not message.get("more_body"):
                return bytes(body)


def describe_refusal(status: int, line: str) -> dict[str, Any]:
    """Return the body of a refusal, in the shape that clients of OpenAI's API read."""
    return {"error": {"message": line, "type": HTTPStatus(status).phrase.lower().replace(" ", "_"), "code": status}}


async def refuse(send: Send, status: int, line: str) -> None:
    """Answer a request with a refusal, and close the connection, on which the rest of the request may still come."""
    content = json.dumps(describe_refusal(status, line)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
    headers += [(b"connection", b"close")]
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": content})


# Batch waiting requests.

Answer = Callable[[Sequence[Any]], Sequence[Any]]


class Overloaded(Exception):
    """As many texts wait as may."""


class Closed(Exception):
    """No further requests are taken."""


class _Request(NamedTuple):
    examples: Sequence[Any]
    future: "Future[list[Any]]"


class Batcher:
    """A thread that answers the waiting requests of a model, those that wait together in one call.

    No request waits for others to come: an idle model answers the first at once.

    Args:
        answer: returns one answer per example; only this thread calls it.
        most_examples: of one call, unless a single request has more.
        most_waiting: examples that may wait before requests are refused.
        follow: called with the number of examples of each call.
    Attributes:
        waiting: the number of examples that wait.
        thread: the one that answers; it lives until `close`.
    """

    def __init__(
        self,
        answer: Answer,
        most_examples: int = 64,
        most_waiting: int = 1024,
        follow: Callable[[int], None] = lambda count: None,
    ):
        self._answer, self._most_examples, self._most_waiting = answer, most_examples, most_waiting
        self._follow = follow
        self._requests: deque[_Request] = deque()
        self._changed = threading.Condition()
        self.waiting, self._is_open = 0, True
        self.thread = threading.Thread(target=self._run, name="batcher", daemon=True)
        self.thread.start()

    def submit(self, examples: Sequence[Any]) -> "Future[list[Any]]":
        """Add a request; cancelling its future before its turn removes it.

        Raises:
            Overloaded: it would exceed `most_waiting`.
            Closed: after `close`.
        """
        future: Future[list[Any]] = Future()
        with self._changed:
            if not self._is_open:
                raise Closed
            if self.waiting + len(examples) > self._most_waiting:
                raise Overloaded
            self._requests.append(_Request(examples, future))
            self.waiting += len(examples)
            self._changed.notify()
        return future

    def close(self, timeout: float | None = None) -> None:
        """Take no further requests, and wait until those that wait are answered."""
        with self._changed:
            self._is_open = False
            self._changed.notify()
        self.thread.join(timeout)

    def _run(self) -> None:
        """Wait for requests, take as many as fit a call, and answer them; end once closed and empty."""
        while True:
            taken: list[_Request] = []
            count = 0
            with self._changed:
                self._changed.wait_for(lambda: self._requests or not self._is_open)
                while self._requests and (not taken or count + len(self._requests[0].examples) <= self._most_examples):
                    taken.append(self._requests.popleft())
                    count += len(taken[-1].examples)
                self.waiting -= count
            if not taken:
                return
            if running := [request for request in taken if request.future.set_running_or_notify_cancel()]:
                self._answer_all(running)

    def _answer_all(self, requests: Sequence[_Request]) -> None:
        """Answer requests in one call; if it fails, each in its own, so that one cannot spoil the others."""
        examples = [example for request in requests for example in request.examples]
        self._follow(len(examples))
        try:
            answers = list(self._answer(examples))
            if len(answers) != len(examples):
                raise RuntimeError(f"There must be an answer for each text. Received: {len(answers)}.")
        except Exception as error:
            if len(requests) == 1:
                requests[0].future.set_exception(error)
                return
            for request in requests:
                self._answer_all([request])
            return
        first = 0
        for request in requests:
            request.future.set_result(answers[first : first + len(request.examples)])
            first += len(request.examples)

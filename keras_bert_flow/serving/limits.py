"""Limits of requests, and who may ask: checked before a body is parsed."""

import asyncio
import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

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


class LimitedRequests:
    """ASGI middleware that refuses requests without the token, too large ones, and those that arrive too slowly.

    Args:
        token: to be given as `Authorization: Bearer TOKEN`; None if nobody needs one.
    """

    def __init__(self, app: App, limits: Limits, token: str | None):
        self._app, self._limits, self._token = app, limits, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        if not self._may_ask(scope["path"], headers.get(b"authorization", b"")):
            await refuse(send, HTTPStatus.UNAUTHORIZED, "A request must have the token: `Authorization: Bearer TOKEN`.")
            return
        try:
            async with asyncio.timeout(self._limits.seconds):
                body = await self._read(headers, receive)
        except TimeoutError:
            line = f"A request must arrive within {self._limits.seconds:g} seconds."
            await refuse(send, HTTPStatus.REQUEST_TIMEOUT, line)
            return
        except ValueError:
            line = f"A request must have at most {self._limits.body_bytes:,} bytes. Send the texts in several."
            await refuse(send, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, line)
            return
        if body is None:  # the client is gone
            return
        messages: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": body, "more_body": False}]
        await self._app(scope, _replay(messages, receive), send)

    def _may_ask(self, path: str, given: bytes) -> bool:
        if self._token is None or path in OPEN_PATHS:
            return True
        scheme, _, token = given.partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token.encode())

    async def _read(self, headers: dict[bytes, bytes], receive: Receive) -> bytes | None:
        """Read the body of a request; None if the client has left.

        Raises:
            ValueError: it is too large.
        """
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self._limits.body_bytes:
            raise ValueError
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            if len(body) > self._limits.body_bytes:
                raise ValueError
            if not message.get("more_body"):
                return bytes(body)


def _replay(messages: list[MutableMapping[str, Any]], receive: Receive) -> Receive:
    async def again() -> MutableMapping[str, Any]:
        return messages.pop(0) if messages else await receive()

    return again


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

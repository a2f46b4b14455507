"""Bound the time that a service may take to answer before work begins.

The timeouts of libraries count from one byte to the next, or apply to each of many attempts, and some ask other
services first, for credentials: a bound on the whole needs a thread that can be left behind.
"""

import threading
from collections.abc import Callable
from typing import TypeVar

ANSWER_SECONDS = 20.0

_Answer = TypeVar("_Answer")


class NoAnswerError(OSError):
    """A service that has not answered in time; its message is one line."""


def answer_within(
    ask: Callable[[], _Answer],
    service: str,
    address: str,
    remedy: str,
    seconds: float | None = None,
    spent_seconds: float = 0.0,
) -> _Answer:
    """Call a function in another thread, and return what it returns or raise what it raises.

    After the deadline its thread goes on until the end of the process, and what it returns is dropped.

    Args:
        ask: the question to the service.
        service: what is asked, to begin the error message with.
        address: of the service, without credentials.
        remedy: what to check, without a full stop.
        seconds: for the whole answer; `ANSWER_SECONDS` by default.
        spent_seconds: of these, on an earlier question.
    Raises:
        NoAnswerError: there is no answer in time.

    >>> answer_within(lambda: 200, "A server", "http://localhost", "Start it")
    200
    """
    seconds = ANSWER_SECONDS if seconds is None else seconds
    outcome: list[tuple[_Answer | None, BaseException | None]] = []

    def run() -> None:
        try:
            outcome.append((ask(), None))
        except BaseException as error:
            outcome.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(max(seconds - spent_seconds, 1.0))
    if not outcome:
        raise NoAnswerError(
            f"{service} must answer within {seconds:.0f} s. Received: {address}: no whole answer. {remedy}."
        )
    answer, error = outcome[0]
    if error is not None:
        raise error
    return answer  # type: ignore[return-value]  # there is one where there is no error

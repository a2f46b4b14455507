"""Batch waiting requests: while a model answers, the next ones gather, and are then answered together."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

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
        self._waiting: deque[_Request] = deque()
        self._changed = threading.Condition()
        self._count, self._is_open = 0, True
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of examples that wait."""
        return self._count

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

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
            if self._count + len(examples) > self._most_waiting:
                raise Overloaded
            self._waiting.append(_Request(examples, future))
            self._count += len(examples)
            self._changed.notify()
        return future

    def close(self, timeout: float | None = None) -> None:
        """Take no further requests, and wait until those that wait are answered."""
        with self._changed:
            self._is_open = False
            self._changed.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        while requests := self._take():
            running = [request for request in requests if request.future.set_running_or_notify_cancel()]
            if running:
                self._answer_all(running)

    def _take(self) -> list[_Request]:
        """Wait for requests and take as many as fit a call; none once closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or not self._is_open)
            taken: list[_Request] = []
            count = 0
            while self._waiting and (not taken or count + len(self._waiting[0].examples) <= self._most_examples):
                taken.append(self._waiting.popleft())
                count += len(taken[-1].examples)
            self._count -= count
            return taken

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

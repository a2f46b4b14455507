"""Requests that wait together are answered together, and none is lost, mixed up or answered twice."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from keras_bert_flow.serving.requests import Batcher, Closed, Overloaded
from tests.patience import PATIENCE_SECONDS


class Model:
    """Doubles numbers, once it may; a number below 0 fails."""

    def __init__(self):
        self.calls, self.begun, self.may_go = [], threading.Event(), threading.Event()

    def answer(self, examples):
        self.begun.set()
        assert self.may_go.wait(PATIENCE_SECONDS)
        self.calls.append(list(examples))
        if any(number < 0 for number in examples):
            raise ValueError("below 0")
        return [2 * number for number in examples]


@pytest.fixture
def model():
    return Model()


def take(future):
    return future.result(PATIENCE_SECONDS)


def test_requests_that_wait_are_answered_in_one_call(model):
    batcher = Batcher(model.answer, most_examples=4)
    first = batcher.submit([1])
    assert model.begun.wait(PATIENCE_SECONDS)
    others = [batcher.submit([number, number]) for number in (2, 3, 4)]
    assert batcher.waiting == 6
    model.may_go.set()
    assert take(first) == [2]
    assert [take(future) for future in others] == [[4, 4], [6, 6], [8, 8]]
    assert model.calls == [[1], [2, 2, 3, 3], [4, 4]]
    assert batcher.waiting == 0


def test_a_request_larger_than_a_call_has_one_of_its_own(model):
    model.may_go.set()
    assert take(Batcher(model.answer, most_examples=2).submit([1, 2, 3])) == [2, 4, 6]
    assert model.calls == [[1, 2, 3]]


def test_a_request_that_fails_spoils_no_other(model):
    batcher = Batcher(model.answer)
    batcher.submit([0])
    assert model.begun.wait(PATIENCE_SECONDS)
    good, bad, later = (batcher.submit(numbers) for numbers in ([1], [-1], [2]))
    model.may_go.set()
    assert (take(good), take(later)) == ([2], [4])
    with pytest.raises(ValueError, match="below 0"):
        take(bad)


def test_more_than_may_wait_are_refused(model):
    batcher = Batcher(model.answer, most_waiting=3)
    running = batcher.submit([0])
    assert model.begun.wait(PATIENCE_SECONDS)
    waiting = batcher.submit([1, 2])
    with pytest.raises(Overloaded):
        batcher.submit([3, 4])
    last = batcher.submit([5])
    model.may_go.set()
    assert [take(future) for future in (running, waiting, last)] == [[0], [2, 4], [10]]


def test_cancelled_requests_are_not_asked(model):
    batcher = Batcher(model.answer)
    batcher.submit([0])
    assert model.begun.wait(PATIENCE_SECONDS)
    cancelled, kept = batcher.submit([1]), batcher.submit([2])
    assert cancelled.cancel()
    model.may_go.set()
    assert take(kept) == [4]
    assert model.calls == [[0], [2]]


def test_closing_answers_those_that_wait(model):
    batcher = Batcher(model.answer)
    running = batcher.submit([0])
    assert model.begun.wait(PATIENCE_SECONDS)
    waiting = batcher.submit([1])
    closing = threading.Thread(target=batcher.close)
    closing.start()
    model.may_go.set()
    closing.join(PATIENCE_SECONDS)
    assert not batcher.thread.is_alive()
    assert (take(running), take(waiting)) == ([0], [2])
    with pytest.raises(Closed):
        batcher.submit([2])


def test_a_model_that_answers_too_few_is_an_error():
    with pytest.raises(RuntimeError, match="an answer for each text. Received: 1"):
        take(Batcher(lambda examples: [0]).submit([1, 2]))


def test_answers_are_those_of_their_requests(model):
    model.may_go.set()
    batcher = Batcher(model.answer, most_examples=8)
    with ThreadPoolExecutor(8) as pool:
        requests = [[number, number + 1] for number in range(400)]
        found = list(pool.map(lambda numbers: take(batcher.submit(numbers)), requests))
    assert found == [[2 * number for number in numbers] for numbers in requests]
    assert sorted(sum(model.calls, [])) == sorted(sum(requests, []))

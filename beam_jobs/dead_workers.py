"""End a job whose worker process has died, for which Beam's local runner would wait forever."""

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from keras_bert_flow import exit_status
from keras_bert_flow.interrupts import end_children
from keras_bert_flow.terminal import show

GRACE_SECONDS = 10.0  # for the runner to fail by itself, as it often does, and to raise an error about the input
_WORKER_ENDED = "Worker subprocess exited with return code"  # apache_beam/runners/portability/local_job_service.py


@contextmanager
def ending_with_workers() -> Iterator[None]:
    """End this process if a worker dies and the runner does not fail by itself.

    The process then exits with status `FAILED` at once, since the threads of the runner cannot be interrupted. This
    leaves the same files as `kill -9`, which the next job with the same output removes.

    Raises:
        ChildProcessError: a worker died, and the runner failed.
    """
    timers: list[threading.Timer] = []
    ended: list[str] = []
    before = threading.excepthook

    def watch(arguments: threading.ExceptHookArgs) -> None:
        if _WORKER_ENDED not in str(arguments.exc_value):
            before(arguments)
            return
        ended.append(_describe(int(str(arguments.exc_value).split()[-1])))
        timers.append(threading.Timer(GRACE_SECONDS, _leave, [ended[-1]]))
        timers[-1].daemon = True
        timers[-1].start()

    threading.excepthook = watch
    try:
        yield
    except RuntimeError as error:
        if timers:
            raise ChildProcessError(ended[0]) from error
        raise
    finally:
        threading.excepthook = before
        for timer in timers:
            timer.cancel()


def _describe(status: int) -> str:
    number = -status if status < 0 else status - 128  # the process's own status, or that of the shell that started it
    reason = f"was killed by signal {number}" if number > 0 else f"ended with status {status}"
    return f"A worker process of Apache Beam {reason}. Give the machine more memory, or take --direct_num_workers=1."


def _leave(line: str) -> None:
    show(f"kbf: {line}", sys.stderr)
    end_children()  # the remaining workers would print tracebacks
    os._exit(exit_status.FAILED)

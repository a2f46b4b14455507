"""Turn a request to stop into a flag that training asks after every step: SIGTERM, and Ctrl-C in a terminal."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from keras_bert_flow.interrupts import leave

NOTICE = b"\nStopping at the next step, with a checkpoint; Ctrl-C again stops at once, without.\n"


@contextmanager
def stop_requests() -> Iterator[threading.Event]:
    """Note SIGTERM, and the first SIGINT, instead of dying of them; only the main thread may.

    A second SIGTERM changes nothing: schedulers send several, and SIGKILL is there for more. A second SIGINT raises
    KeyboardInterrupt, or under `kbf` ends the process, and the run goes on from its newest checkpoint. Where someone
    else handles SIGINT, theirs stays.
    """
    requested = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield requested
        return

    def note_interrupt(number, frame):
        if requested.is_set():
            before[signal.SIGINT](number, frame)
        requested.set()
        os.write(2, NOTICE)  # `print` may be under way in the code that the signal interrupts

    before: dict[int, Any] = {signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: requested.set())}
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, leave):
        before[signal.SIGINT] = signal.signal(signal.SIGINT, note_interrupt)
    try:
        yield requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

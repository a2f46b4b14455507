"""Handle SIGTERM, SIGHUP and Ctrl-C (SIGINT) by setting a flag that training checks after every step."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from keras_bert_flow.interrupts import leave, mute_closed_terminal

NOTICE = b"\nStopping at the next step, with a checkpoint; Ctrl-C again stops at once, without.\n"


@contextmanager
def stop_requests() -> Iterator[threading.Event]:
    """Catch SIGTERM, SIGHUP and the first SIGINT and set an event instead of ending; only in the main thread.

    Further SIGTERMs have no effect: schedulers send several, and SIGKILL ends a process at once. SIGHUP, of a terminal
    that was closed, does the same unless it is ignored (`nohup`); what is written to that terminal from then on is
    discarded. A second SIGINT raises KeyboardInterrupt, or under `kbf` ends the process; the run can then be resumed
    from its newest checkpoint. If there is another handler for SIGINT or SIGHUP, it stays in place.
    """
    requested = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield requested
        return

    def note_interrupt(number, frame):
        if requested.is_set():
            before[signal.SIGINT](number, frame)
        requested.set()
        os.write(2, NOTICE)  # not `print`, which the signal may have interrupted

    def note_hangup(number, frame):
        requested.set()
        mute_closed_terminal()

    before: dict[int, Any] = {signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: requested.set())}
    if signal.getsignal(signal.SIGHUP) in (signal.SIG_DFL, leave):
        before[signal.SIGHUP] = signal.signal(signal.SIGHUP, note_hangup)
    if signal.getsignal(signal.SIGINT) in (signal.default_int_handler, leave):
        before[signal.SIGINT] = signal.signal(signal.SIGINT, note_interrupt)
    try:
        yield requested
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

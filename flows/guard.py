"""Become a command that dies with the process that started it, even when that one is killed with -9.

Run as `python -I -S guard.py PARENT_PID COMMAND...`, with `-` for whoever starts it. A file of its own, run before the
command in the same process, because Python code between fork and exec (`preexec_fn`) may deadlock in a process that has
threads. Linux only: on other systems the command is started as it is.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h


ANY_PARENT = "-"


def become(parent_pid: int | None, command: list[str]) -> None:
    """Ask the system to end this process with its parent, then turn into the command."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if parent_pid is not None and os.getppid() != parent_pid:  # the parent died before we asked
            sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    become(None if sys.argv[1] == ANY_PARENT else int(sys.argv[1]), sys.argv[2:])

"""Run a command that dies with its parent process, even if the parent is killed with SIGKILL.

Run as `python -I -S guard.py PARENT_PID COMMAND...`, with `-` for any parent. This is a separate file, run before the
command in the same process, because Python code between fork and exec (`preexec_fn`) may deadlock in a process with
threads. Linux only: on other systems the command is just started.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # linux/prctl.h
ANY_PARENT = "-"

if __name__ == "__main__":
    parent_pid, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # the kernel kills this process when its parent dies
        if parent_pid != ANY_PARENT and os.getppid() != int(parent_pid):  # the parent died before the request
            sys.exit(1)
    os.execvp(command[0], command)

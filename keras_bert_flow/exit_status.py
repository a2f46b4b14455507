"""Say with which status a command ends, to a shell, a scheduler and the flows that start commands."""

ERRORS_FOUND = 1  # by the doctor
FAILED = 1  # a process that this one started ended badly, for no fault of the input
USER_ERROR = 2
CHECKPOINTED = 75  # EX_TEMPFAIL of sysexits.h: stopped on a signal after a checkpoint, run again to go on
INTERRUPTED = 130  # 128 + SIGINT
TERMINATED = 143  # 128 + SIGTERM

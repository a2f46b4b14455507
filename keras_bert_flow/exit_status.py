"""Exit statuses of the commands, for shells, schedulers and the flows that start commands."""

ERRORS_FOUND = 1  # by the doctor
FAILED = 1  # a child process failed, through no fault of the input
USER_ERROR = 2
REPORTED = 3  # of a logger that has said what went wrong, so that its training need not
PROCESS_LOST = 69  # EX_UNAVAILABLE: another process of a distributed run ended or never came; run all again to resume
CHECKPOINTED = 75  # EX_TEMPFAIL of sysexits.h: stopped by a signal after a checkpoint; run again to resume
HUNG_UP = 129  # 128 + SIGHUP
INTERRUPTED = 130  # 128 + SIGINT
TERMINATED = 143  # 128 + SIGTERM

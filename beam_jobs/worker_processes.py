"""Start the worker processes of Beam's local runner so that Ctrl-C in a terminal reaches the main process alone."""

import shlex
import sys

from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.environments import SubprocessSDKEnvironment

MULTI_PROCESSING = "multi_processing"
# As fn_runner.py has it. The runner gives the command to a shell; a signal that is ignored stays so across `exec`.
COMMAND = "trap '' INT; exec {python} -m beam_jobs.sdk_worker_main"


def shielded_runner(options: PipelineOptions) -> FnApiRunner:
    """Return a runner whose worker processes ignore SIGINT: each would print a traceback; the main process ends them.

    Args:
        options: lose the mode `multi_processing`, for which the runner would start workers of its own.
    """
    direct = options.view_as(DirectOptions)
    if direct.direct_running_mode != MULTI_PROCESSING:
        return FnApiRunner()
    direct.direct_running_mode = None
    command = COMMAND.format(python=shlex.quote(sys.executable))
    return FnApiRunner(SubprocessSDKEnvironment.from_command_string(command_string=command))

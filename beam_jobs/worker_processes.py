"""Start the worker processes of Beam's local runner such that Ctrl-C in a terminal reaches only the main process."""

import shlex
import sys

from apache_beam.options.pipeline_options import DirectOptions, PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.transforms.environments import SubprocessSDKEnvironment

MULTI_PROCESSING = "multi_processing"
# As in fn_runner.py. The runner passes the command to a shell; an ignored signal stays ignored across `exec`.
COMMAND = "trap '' INT; exec {python} -m beam_jobs.sdk_worker_main"


def shielded_runner(options: PipelineOptions) -> FnApiRunner:
    """Return a runner whose worker processes ignore SIGINT, which would make each print a traceback.

    The main process ends them.

    Args:
        options: Beam's options; the mode `multi_processing` is removed, since the runner would start its own workers.
    """
    direct = options.view_as(DirectOptions)
    if direct.direct_running_mode != MULTI_PROCESSING:
        return FnApiRunner()
    direct.direct_running_mode = None
    command = COMMAND.format(python=shlex.quote(sys.executable))
    return FnApiRunner(SubprocessSDKEnvironment.from_command_string(command_string=command))

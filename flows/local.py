"""Run the whole pipeline locally: the flow of the deployments, without a server to start or to clean up.

The flow runs in a child process, so that Prefect reads its settings from an environment set here and sends its last
events when that process ends, while the server still listens.
"""

import importlib
import importlib.util
import json
import logging
import os
import secrets
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from flows.child import GRACE_SECONDS, run_child
from flows.own_server import CLIENT_PASSWORD, SERVER_PASSWORD
from flows.parameters import resolve_config
from flows.plan import is_soon_digested
from flows.server import POLL_SECONDS, RUN_LOGGERS, answers, check_chosen_server, find_chosen_server, running_server
from flows.stages import IS_THERE, REPORT, StageError, find_all
from keras_bert_flow.console import interrupts
from keras_bert_flow.console.interrupts import RUN_BEGAN, command_seconds, handling_signals
from keras_bert_flow.console.progress import working
from keras_bert_flow.files.outputs import explain_os_error
from keras_bert_flow.results.artifacts import removed_on_leaving, write_atomically
from keras_bert_flow.results.choosing import link_newest

PIPELINE, MATRIX = "flows.pipeline:bert_pipeline", "flows.deployments:bert_matrix"
FLOW_GRACE_SECONDS = GRACE_SECONDS + 10.0  # the flow first waits for the grace period of its stage
LAST_LINES = 5  # shown for a flow that died without reporting why
SERVER_LOG = "keras-bert-flow-server.log"
AWAITED = "KBF_AWAITED_SERVER"  # the address of a server that starts while the flow's process imports Prefect
# Prefect logs only to its server; `main` prints the lines of the stages.
QUIET = {
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false",
    "PREFECT_CLI_PROMPT": "false",
}


def run_locally(
    config_path: str | Path,
    overrides: Sequence[str] = (),
    backend: str | None = None,
    on_line: Callable[[str], None] = print,
    flow: str = PIPELINE,
) -> Path:
    """Run a flow, by default `bert-pipeline`, on the server configured in Prefect, or else on a temporary one.

    `check_run` must have accepted the configuration, since the flow does not check it again.

    Args:
        overrides: `key.sub=value` settings.
        on_line: takes each line of progress.
        flow: `module:function` of a flow with these parameters that returns a path.
    Returns:
        The path of the report.
    Raises:
        ValueError: an error that the user can fix, in one line.
        StageError: any other failure.
    """
    if importlib.util.find_spec("prefect") is None:
        raise ValueError("`kbf run` needs Prefect. Received: none installed. pip install 'keras-bert-flow[flows]'")
    chosen, home = find_chosen_server()
    began = {RUN_BEGAN: f"{time.time() - command_seconds():.0f}"}
    chosen_backend = () if backend is None else (f"backend={backend}",)  # takes precedence over a setting
    parameters = {"config_path": str(config_path), "overrides": [*overrides, *chosen_backend]}
    # On a temporary server nobody would see a flow whose stages are all finished, so none is started.
    if not chosen and flow == PIPELINE and (report := find_report(parameters, on_line)):
        return report
    if chosen:
        with working("Reaching Prefect's server"):
            check_chosen_server(chosen)
        return run_flow(parameters, began | {"PREFECT_API_URL": chosen}, on_line, flow)
    password = secrets.token_urlsafe()  # other users of this machine reach the server too
    with running_server(home / SERVER_LOG, {SERVER_PASSWORD: password, CLIENT_PASSWORD: password}) as server:
        environment = began | {"PREFECT_API_URL": server.address, AWAITED: server.address, CLIENT_PASSWORD: password}
        return run_flow(parameters, environment, on_line, flow, server.watch)


def main(flow: str, parameters: str, outcome: str) -> int:
    """Run the flow in this child process, and write the report's path, or the error, to a file."""
    try:
        with handling_signals():  # later Prefect handles them
            from flows.pipeline import IS_CHECKED

            module, _, function = flow.partition(":")
            run = getattr(importlib.import_module(module), function)
            while (address := os.environ.get(AWAITED)) and not answers(address):
                time.sleep(POLL_SECONDS)
        IS_CHECKED.set(True)
        # Print the lines of flows and stages, without Prefect's messages about itself.
        handler = logging.StreamHandler(sys.stdout)
        handler.addFilter(lambda record: Path(record.pathname).parent == Path(__file__).parent)
        for name in RUN_LOGGERS:
            logging.getLogger(name).addHandler(handler)
        text, status = run(**json.loads(parameters)), 0
    except OSError as error:
        text, status = explain_os_error(error), interrupts.USER_ERROR
    except ValueError as error:
        text, status = " ".join(str(error).split()), interrupts.USER_ERROR
    except StageError as error:
        text, status = " ".join(str(error).split()), 1
    except Exception as error:
        traceback.print_exc()
        text, status = " ".join(f"{type(error).__name__}: {error}".split()), 1
    write_atomically(outcome, text.encode("utf-8", "surrogatepass"))  # a path need not be UTF-8
    return status


def run_flow(
    parameters: dict,
    environment: dict[str, str],
    on_line: Callable[[str], None],
    flow: str = PIPELINE,
    watch: Callable[[], object] | None = None,
) -> Path:
    """Run the flow in a child process and return the path of its report; raise as `run_locally` does.

    Args:
        watch: called repeatedly while the flow runs; an exception that it raises stops the flow.
    """
    last_lines: deque[str] = deque(maxlen=LAST_LINES)
    environment = {RUN_BEGAN: f"{time.time():.0f}"} | environment

    waiting = ExitStack()  # until the first line, since importing Prefect takes seconds

    def follow(line: str) -> None:
        waiting.close()
        last_lines.append(line.strip())
        on_line(line)

    with tempfile.TemporaryDirectory(prefix="kbf-") as folder, removed_on_leaving(folder):
        outcome = Path(folder) / "outcome"
        command = (sys.executable, "-m", "flows.local", flow, json.dumps(parameters), str(outcome))
        with waiting:
            waiting.enter_context(working("Starting Prefect"))
            status = run_child(command, QUIET | environment, follow, FLOW_GRACE_SECONDS, watch)
        if outcome.is_file():
            text = outcome.read_text("utf-8", "surrogatepass")
        else:
            text = f"Its last output: {' | '.join(last_lines)}" if last_lines else "It printed nothing."
    if status == interrupts.USER_ERROR:
        raise ValueError(text)
    if status != 0:
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        raise StageError(f"The flow {how}. {text}")
    return Path(text)


def find_report(parameters: dict[str, Any], on_line: Callable[[str], None]) -> Path | None:
    """Return the path of the report if all stages are finished, and report each as the flow would; else None.

    For a large text this is left to the flow, since it would be digested twice.
    """
    config = resolve_config(**parameters)
    stages = find_all(config) if is_soon_digested(config) else None
    for stage in stages or ():
        on_line(stage.say(IS_THERE))
    if not stages:
        return None
    link_newest(stages[-1].folder, config.name)
    return stages[-1].folder / REPORT


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

"""Run a Beam pipeline: its runner and worker processes, dead workers, leftovers, errors in one line."""

import argparse
import contextlib
import json
import logging
import os
import re
import shlex
import shutil
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import apache_beam as beam
from apache_beam.options.pipeline_options import (
    DirectOptions,
    FlinkRunnerOptions,
    PipelineOptions,
    PortableOptions,
    SparkRunnerOptions,
    StandardOptions,
    WorkerOptions,
)
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.runner import create_runner
from apache_beam.transforms.environments import SubprocessSDKEnvironment

from keras_bert_flow.console import interrupts
from keras_bert_flow.console.interrupts import end_children, on_leaving
from keras_bert_flow.console.terminal import show
from keras_bert_flow.results.artifacts import NO_ROOM, locked, removed_on_leaving
from keras_bert_flow.text.corpus.inputs import is_remote

# End a job whose worker process has died, for which Beam's local runner would wait forever.

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
        status = int(str(arguments.exc_value).split()[-1])
        number = -status if status < 0 else status - 128  # of the process itself, or of the shell that started it
        reason = f"was killed by signal {number}" if number > 0 else f"ended with status {status}"
        ended.append(
            f"A worker process of Apache Beam {reason}. Give the machine more memory, or take --direct_num_workers=1."
        )
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


def _leave(line: str) -> None:
    show(f"kbf: {line}", sys.stderr)
    end_children()  # the remaining workers would print tracebacks
    os._exit(interrupts.FAILED)


# Start the worker processes of Beam's local runner such that Ctrl-C in a terminal reaches only the main process.

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


# Remove the files of killed jobs whose outputs are not requested again.

QUIET_SECONDS = 24 * 3600
_WORK, _LOCK = ".work", ".lock"  # names as in `publishing`, after a dot and the name of the output
_JOB_FOLDER = re.compile(r"\.[0-9a-f]{32}")


def remove_leftovers(parent: Path) -> None:
    """Remove the job folders that killed jobs left in the work folders next to an output.

    A killed job's files are removed when its output is made again. With other settings an output may have another name,
    and the files, as large as the corpus, would stay. This removes those on which no process holds a lock and, since
    some network disks do not show locks to other machines, to which nothing was written for a day. Errors are ignored.

    Args:
        parent: the folder that contains outputs.
    """
    quiet_since = time.time() - QUIET_SECONDS
    for work in parent.glob(f".*{_WORK}"):
        with contextlib.suppress(OSError):  # owned by another user, in use by a job, or removed meanwhile
            if work.is_symlink():  # nothing of ours
                continue
            folders = [path for path in work.iterdir() if _JOB_FOLDER.fullmatch(path.name)]
            written = {folder: max(path.stat().st_mtime for path in (folder, *folder.rglob("*"))) for folder in folders}
            if quiet := [folder for folder, last in written.items() if last < quiet_since]:
                with locked(work.with_suffix(_LOCK), wait=False):
                    for folder in quiet:
                        shutil.rmtree(folder, ignore_errors=True)
                    work.rmdir()  # fails if it is not empty


# Refuse, before a job starts, runners and options with which it would fail.

_IN_CONTAINERS = (None, "DOCKER")  # "DOCKER" is Beam's default for clusters
_LOCAL_FLINK = ("[local]", "[auto]")
# runner → what is wrong with it, in Beam 2.77
_LOSING = {
    "DaskRunner": "computes only the last of a job's outputs and loses what a step emits at the end of a bundle",
}


def check_runner(options: Sequence[str]) -> None:
    """Raise ValueError for a runner that Beam does not have, or that loses the output of a job."""
    runner = PipelineOptions(list(options)).view_as(StandardOptions).runner
    name = (runner or "").rsplit(".", 1)[-1]
    if reason := _LOSING.get(name):
        raise ValueError(
            f"A runner must keep all that a job makes. Received: {name}, which {reason}. "
            "Leave --runner out, or choose FlinkRunner, SparkRunner or DataflowRunner."
        )
    try:
        create_runner(runner or DEFAULT_RUNNER)
    except (ValueError, ImportError, AttributeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(
            f"A runner must be one that Apache Beam has. Received: {runner}: {reason}. See --help."
        ) from None


def check_reach(output: str, options: Sequence[str]) -> None:
    """Raise ValueError for an output that the runner's workers cannot write to."""
    if is_remote(output):
        return
    parsed = PipelineOptions(list(options))
    name = (parsed.view_as(StandardOptions).runner or "").rsplit(".", 1)[-1]
    environment = parsed.view_as(PortableOptions).environment_type
    flink, spark = parsed.view_as(FlinkRunnerOptions), parsed.view_as(SparkRunnerOptions)
    is_elsewhere = {
        "PortableRunner": True,
        "FlinkRunner": flink.flink_master.strip() not in _LOCAL_FLINK,
        "SparkRunner": not spark.spark_master_url.startswith("local"),
    }
    if name == "DataflowRunner":
        raise ValueError(
            f"The output of DataflowRunner must be in an object store. Received: {output}, on this machine's disk. "
            "Give --output gs://BUCKET/NAME."
        )
    if is_elsewhere.get(name, False) and environment in _IN_CONTAINERS:
        raise ValueError(
            f"Workers in containers must have an output in an object store. Received: {output}, a folder that they do "
            f"not see, with --runner={name}. Give --output s3://BUCKET/NAME, or --environment_type=EXTERNAL and a "
            "folder that all machines share."
        )


DEFAULT_RUNNER = "FnApiRunner"  # Beam's own default first looks for a Go binary on the network
_USER_ERRORS = (ValueError, FileNotFoundError, PermissionError)
_TRACED_ERROR = re.compile(rf"(?:{'|'.join(error.__name__ for error in _USER_ERRORS)}): (.+?)(?:\\n|\n|$)")
_TRACED_ERRNO = re.compile(r"\[Errno (\d+)\]")
_PRISM_MODULE = "github.com/apache/beam/sdks/v2/go/cmd/prism"
_UNREACHED = re.compile(r"Unable to fetch remote (?:job server jar|prism binary) at (\S+?):? ")
_SECRETS = ("--s3_access_key_id", "--s3_secret_access_key", "--s3_session_token", "--azure_connection_string")
_HDFS_OPTIONS = "--hdfs_"  # of Beam's own filesystem for it
_WORKER_OPTIONS = "PIPELINE_OPTIONS_FILE"  # read by apache_beam/runners/worker/sdk_worker_main.py


def run_pipeline(build: Callable[[beam.Pipeline], object], options: Sequence[str], folder: Path) -> None:
    """Build and run a pipeline to its end.

    Args:
        build: adds the steps to the given pipeline.
        options: Beam's options, such as `--runner=FlinkRunner`.
        folder: for a file that workers read at start; the owner of the folder removes what a kill leaves there.
    Raises:
        OSError: the disk of a worker is full.
        ValueError: a worker found bad input; the message is the worker's, without Beam's traceback.
    """
    check_options(options)
    parsed = PipelineOptions(list(options))
    standard = parsed.view_as(StandardOptions)
    standard.runner = standard.runner or DEFAULT_RUNNER
    runner = shielded_runner(parsed) if standard.runner == DEFAULT_RUNNER else None
    pipeline = beam.Pipeline(runner, options=parsed)
    try:
        with removed_on_leaving(pipeline.local_tempdir), on_leaving(end_children):
            build(pipeline)
            _run(pipeline, parsed, folder)
    finally:
        shutil.rmtree(pipeline.local_tempdir, ignore_errors=True)  # Beam leaves it if the pipeline was not run


def _run(pipeline: beam.Pipeline, options: PipelineOptions, folder: Path) -> None:
    level = options.view_as(WorkerOptions).default_sdk_harness_log_level or "CRITICAL"
    try:
        with _quiet(level, folder), ending_with_workers():
            pipeline.run().wait_until_finish()
    except Exception as error:
        for number in map(int, _TRACED_ERRNO.findall(str(error))):
            if number in NO_ROOM:
                raise OSError(number, os.strerror(number)) from error
        # Runners raise a worker's error about its input, or another with its traceback as the text.
        messages = [str(error)] if isinstance(error, _USER_ERRORS) else _TRACED_ERROR.findall(str(error))
        if messages and (message := messages[-1].split(" [while running ")[0].strip("\"' ")):
            raise ValueError(message) from error
        if reason := _UNREACHED.search(str(error)):
            runner = options.view_as(StandardOptions).runner
            raise ValueError(
                f"A runner's own program must be installed or downloadable. Received: {runner}, with none at "
                f"{reason[1]}. Name one on this machine: --flink_job_server_jar, --spark_job_server_jar or "
                f"--prism_location (`go install {_PRISM_MODULE}@v{beam.__version__}` builds it)."
            ) from error
        raise


@contextmanager
def job_folder(folder: Path) -> Iterator[Path]:
    """Yield a new folder for the files of one pipeline, which are moved into `folder` at the end.

    Workers outlive a killed main process until they finish their bundle. The files they then write have names that no
    later job reads, and so do those of a failed attempt at a shard. After an error, `publishing` removes them all;
    after a kill, the next job with the same output does, or, once they are old, any job with an output next to it.
    """
    remove_leftovers(folder.parent)
    place = folder / f".{uuid.uuid4().hex}"
    place.mkdir()
    yield place
    for path in place.iterdir():
        if path.is_file():
            os.rename(path, folder / path.name)
    shutil.rmtree(place)


@contextmanager
def _quiet(level: str, folder: Path) -> Iterator[None]:
    """Keep Beam from logging every step, and the traceback of every error that is raised anyway.

    Worker processes take their log level from a file named by an environment variable of this process.
    """
    logger = logging.getLogger("apache_beam")
    level_before, file_before = logger.level, os.environ.get(_WORKER_OPTIONS)
    file = folder / ".worker_options.json"
    file.write_text(json.dumps({"default_sdk_harness_log_level": level}))
    logger.setLevel(int(level) if level.isdecimal() else level)
    os.environ[_WORKER_OPTIONS] = file_before or str(file)
    try:
        yield
    finally:
        logger.setLevel(level_before)
        os.environ.pop(_WORKER_OPTIONS)
        if file_before:
            os.environ[_WORKER_OPTIONS] = file_before
        file.unlink(missing_ok=True)


def check_options(options: Sequence[str]) -> None:
    """Refuse options that Beam does not have, which it would silently ignore, and values that it cannot parse.

    Raises:
        ValueError: there is no such option, value or runner, or an option is a credential.
    """
    unknown: list[str] = []

    def refuse(message: str) -> NoReturn:
        raise ValueError(f"An option of Apache Beam must have a value of its type. Received: {message}. See --help.")

    def find_unknown(parser: argparse.ArgumentParser) -> None:
        # Otherwise Beam's whole usage would be printed.
        parser.error = refuse  # type: ignore[method-assign]  # the only way to get the message
        unknown.extend(parser.parse_known_args(list(options))[1])

    PipelineOptions([]).get_all_options(add_extra_args_fn=find_unknown)  # builds the parser with all of Beam's options
    if unknown:
        name = unknown[0].partition("=")[0]
        raise ValueError(f"An option must be one of this command or of Apache Beam. Received: {name}. See --help.")
    if secret := next((option for option in options if option.startswith(_SECRETS)), None):
        name = secret.partition("=")[0]
        raise ValueError(
            f"Credentials must come from the environment, such as AWS_ACCESS_KEY_ID. Received: {name}, which a job "
            "server would show. Leave it out."
        )
    if other := next((option for option in options if option.startswith(_HDFS_OPTIONS)), None):
        raise ValueError(
            f"HDFS must be addressed as hdfs://HOST:PORT/PATH, with WebHDFS's port, and the user as HADOOP_USER_NAME. "
            f"Received: {other.partition('=')[0]}. Leave it out."
        )
    check_runner(options)

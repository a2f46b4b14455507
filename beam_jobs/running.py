"""Run a Beam pipeline with the user's options, and turn a worker's error about the input into one line."""

import argparse
import json
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions, WorkerOptions
from apache_beam.runners.runner import create_runner

from beam_jobs.dead_workers import ending_with_workers
from beam_jobs.leftovers import new_job_folder, remove_leftovers
from beam_jobs.runners import check_runner
from beam_jobs.worker_processes import shielded_runner
from keras_bert_flow.artifacts import NO_ROOM, removed_on_leaving
from keras_bert_flow.interrupts import end_children, on_leaving

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
        if message := _find_message(error):
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
    place = new_job_folder(folder)
    yield place
    for path in place.iterdir():
        if path.is_file():
            os.rename(path, folder / path.name)
    shutil.rmtree(place)


def _find_message(error: Exception) -> str | None:
    """Find a worker's message about its input: runners raise its error, or another with its traceback as the text."""
    messages = [str(error)] if isinstance(error, _USER_ERRORS) else _TRACED_ERROR.findall(str(error))
    return messages[-1].split(" [while running ")[0].strip("\"' ") if messages else None


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
    runner = PipelineOptions(list(options)).view_as(StandardOptions).runner
    try:
        create_runner(runner or DEFAULT_RUNNER)
    except (ValueError, ImportError, AttributeError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(
            f"A runner must be one that Apache Beam has. Received: {runner}: {reason}. See --help."
        ) from None

"""Run a pipeline with the options a user gave, and turn a worker's error about the input into one line."""

import re
from collections.abc import Callable, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

DEFAULT_RUNNER = "FnApiRunner"  # Beam's own default first looks for a Go binary on the network
_USER_ERROR = re.compile(r"(?:ValueError|FileNotFoundError|PermissionError): (.+?)(?: \[while running|\\n|\n|$)")


def run_pipeline(build: Callable[[beam.Pipeline], object], options: Sequence[str]) -> None:
    """Build and run a pipeline to its end.

    Args:
        build: adds the steps to the pipeline it is given.
        options: Beam's options, such as `--runner=FlinkRunner`.
    Raises:
        ValueError: a worker met bad input; the message is the worker's, without Beam's trace around it.
    """
    parsed = PipelineOptions(list(options))
    standard = parsed.view_as(StandardOptions)
    standard.runner = standard.runner or DEFAULT_RUNNER
    pipeline = beam.Pipeline(options=parsed)
    build(pipeline)
    try:
        pipeline.run().wait_until_finish()
    except Exception as error:  # runners differ in the type they raise; all keep the worker's line in the text
        message = _USER_ERROR.findall(str(error))
        if message:
            raise ValueError(message[-1].strip("\"' ")) from error
        raise

"""Refuse, before a job starts, runners and options with which it would fail."""

from collections.abc import Sequence

from apache_beam.options.pipeline_options import (
    FlinkRunnerOptions,
    PipelineOptions,
    PortableOptions,
    SparkRunnerOptions,
    StandardOptions,
)

from keras_bert_flow.text.corpus.storage import is_remote

_IN_CONTAINERS = (None, "DOCKER")  # "DOCKER" is Beam's default for clusters
_LOCAL_FLINK = ("[local]", "[auto]")
# runner → what is wrong with it, in Beam 2.77
_LOSING = {
    "DaskRunner": "computes only the last of a job's outputs and loses what a step emits at the end of a bundle",
}


def check_runner(options: Sequence[str]) -> None:
    """Raise ValueError for a runner that loses the output of a job."""
    name = _name_runner(options)
    if reason := _LOSING.get(name):
        raise ValueError(
            f"A runner must keep all that a job makes. Received: {name}, which {reason}. "
            "Leave --runner out, or choose FlinkRunner, SparkRunner or DataflowRunner."
        )


def check_reach(output: str, options: Sequence[str]) -> None:
    """Raise ValueError for an output that the runner's workers cannot write to."""
    if is_remote(output):
        return
    parsed, name = PipelineOptions(list(options)), _name_runner(options)
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


def _name_runner(options: Sequence[str]) -> str:
    return (PipelineOptions(list(options)).view_as(StandardOptions).runner or "").rsplit(".", 1)[-1]

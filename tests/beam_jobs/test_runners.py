"""Runners and options with which a job cannot end well are refused before it starts."""

import pytest

from beam_jobs.running import check_options, check_reach
from tests.commands import assert_refused, kbf

ELSEWHERE = ["--flink_master=host:8081", "--spark_master_url=spark://host:7077", "--job_endpoint=host:8099"]


@pytest.mark.parametrize("name", ["DaskRunner", "apache_beam.runners.dask.dask_runner.DaskRunner"])
def test_runner_that_loses_outputs_is_refused(name):
    with pytest.raises(ValueError, match=r"must keep all that a job makes\. Received: DaskRunner, which .*loses"):
        check_options([f"--runner={name}"])


@pytest.mark.parametrize("runner", ["FlinkRunner", "SparkRunner", "PortableRunner"])
@pytest.mark.parametrize("environment", [[], ["--environment_type=DOCKER"]])
def test_containers_write_no_folder_of_this_machine(runner, environment):
    options = [f"--runner={runner}", *ELSEWHERE, *environment]
    with pytest.raises(ValueError, match=rf"in an object store\. Received: out/r, .*--runner={runner}\. Give"):
        check_reach("out/r", options)
    check_reach("s3://bucket/r", options)


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--runner=FnApiRunner"],
        ["--runner=FlinkRunner"],  # a local one of its own
        ["--runner=SparkRunner"],
        ["--runner=FlinkRunner", *ELSEWHERE, "--environment_type=EXTERNAL"],
        ["--runner=PortableRunner", *ELSEWHERE, "--environment_type=LOOPBACK"],
    ],
)
def test_workers_that_may_see_a_folder_are_taken(options):
    check_reach("out/r", options)


def test_dataflow_needs_a_bucket():
    with pytest.raises(ValueError, match=r"output of DataflowRunner .*Received: out/r"):
        check_reach("out/r", ["--runner=DataflowRunner"])


@pytest.mark.parametrize(
    ("runner", "option", "program"),
    [
        ("PrismRunner", "--prism_beam_version_override=v9.99.0", "prism"),
        pytest.param(
            "FlinkRunner",
            "--flink_job_server_jar=http://127.0.0.1:9/a.jar",
            "127.0.0.1:9/a.jar",
            marks=pytest.mark.slow,
        ),
    ],
)
@pytest.mark.slow
def test_runner_whose_program_is_out_of_reach_is_refused_in_one_line(runner, option, program, tmp_path):
    (tmp_path / "text.txt").write_text("a b c\n\nd e f\n")
    command = ("vocab", "--input", tmp_path / "text.txt", "--size", 40, "--output", tmp_path / "v")
    nowhere = {"HOME": str(tmp_path / "home"), "https_proxy": "http://127.0.0.1:9"}
    done = kbf(*command, f"--runner={runner}", option, environment=nowhere)
    assert_refused(done, runner, program, "--prism_location")
    assert not (tmp_path / "v").exists()

"""Options of Beam that a user gives: those that exist under any of their names, and no others."""

import pytest

from beam_jobs.running import run_pipeline

FOR_CLUSTERS = [  # the names in docs/cluster.md
    "--artifacts_dir=/shared",
    "--environment_config=localhost:50000",
    "--environment_type=EXTERNAL",
    "--extra_package=a.whl",
    "--flink_job_server_jar=a.jar",
    "--flink_master=localhost:8081",
    "--flink_version=1.20",
    "--job_endpoint=localhost:8099",
    "--no_save_main_session",
    "--number_of_worker_harness_threads=2",
    "--parallelism=4",
    "--requirements_file=a.txt",
    "--sdk_container_image=a",
    "--sdk_worker_parallelism=2",
    "--setup_file=setup.py",
    "--spark_job_server_jar=a.jar",
    "--spark_master_url=spark://localhost:7077",
    "--temp_location=gs://a/b",
    "--worker_machine_type=a",
]


class Reached(Exception):
    """The pipeline would be built now: the options were taken."""


def run(tmp_path, *options):
    def build(pipeline):
        raise Reached

    run_pipeline(build, options, tmp_path)


def test_options_of_clusters_are_taken(tmp_path):
    with pytest.raises(Reached):
        run(tmp_path, *FOR_CLUSTERS, "--experiments", "a")


@pytest.mark.parametrize("option", ["--extra_pakage=a", "--direct_num", "--bogus"])
def test_option_that_beam_does_not_have_is_refused(option, tmp_path):
    with pytest.raises(ValueError, match=rf"Received: {option.split('=')[0]}\."):
        run(tmp_path, "--runner=FnApiRunner", option)


def test_option_with_a_bad_value_is_one_line(tmp_path, capsys):
    with pytest.raises(ValueError, match=r"Received: .*direct_num_workers: invalid int value: 'two'") as caught:
        run(tmp_path, "--direct_num_workers=two")
    assert "\n" not in str(caught.value)
    assert capsys.readouterr() == ("", "")

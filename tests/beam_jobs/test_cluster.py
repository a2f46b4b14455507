"""The bytes of this machine from Prism, Flink and Spark: `make test-cluster`, where their programs are.

PRISM_LOCATION names Beam's Prism, a program; FLINK_JOB_SERVER_JAR and SPARK_JOB_SERVER_JAR name Beam's jars, each of
which brings an engine of its own. FLINK_MASTER (host:port) and SPARK_MASTER (spark://host:port) name running clusters
in their place; their workers are those of a pool that each machine runs (docs/cluster.md), by default at
localhost:50000 or as WORKER_POOL says. A pool that is started here shares no folder with the job: it writes to an
object store.
"""

import os

import pytest

from keras_bert_flow.config.text import VocabularyConfig
from tests.beam_jobs.conftest import build, read_folder
from tests.beam_jobs.portable import run_job, run_vocabulary_job, worker_pool
from tests.object_store import BUCKET, object_store, read_bucket

pytestmark = pytest.mark.slow

OBJECTIVES = ("mlm_nsp", "mlm", "mlm_sop", "rtd")
OUTPUT = f"s3://{BUCKET}/out"
PROGRAMS = {
    "Prism": ("PRISM_LOCATION", "--prism_location", "Beam's Prism, a program"),
    "Flink": ("FLINK_JOB_SERVER_JAR", "--flink_job_server_jar", "Beam's job server for Flink, a jar"),
    "Spark": ("SPARK_JOB_SERVER_JAR", "--spark_job_server_jar", "Beam's job server for Spark, a jar"),
}
MASTERS = {"Flink": ("FLINK_MASTER", "--flink_master"), "Spark": ("SPARK_MASTER", "--spark_master_url")}


@pytest.fixture(params=list(PROGRAMS))
def engine(request):
    """Return the options with which an engine's program, and its cluster, are found."""
    name = request.param
    variable, option, what = PROGRAMS[name]
    program = os.environ.get(variable)
    if not program:
        pytest.skip(f"{variable} must name {what}")
    master, master_option = MASTERS.get(name, ("", ""))
    cluster = [f"{master_option}={os.environ[master]}"] if master in os.environ else []
    return [f"--runner={name}Runner", f"{option}={program}", *cluster]


@pytest.fixture
def store(tmp_path, monkeypatch):
    pytest.importorskip("boto3", reason="object stores need boto3")
    with object_store(tmp_path) as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        yield environment


@pytest.fixture
def pool(tmp_path, store):
    """Yield the options of a job whose workers are a pool's, which reach the store and no folder of the job."""
    if "WORKER_POOL" in os.environ or any(variable in os.environ for variable, _ in MASTERS.values()):
        address = os.environ.get("WORKER_POOL", "localhost:50000")
        yield ["--environment_type=EXTERNAL", f"--environment_config={address}"]
        return
    (tmp_path / "pool").mkdir()
    with worker_pool(tmp_path / "pool") as options:
        yield options


def below(store, name):
    prefix = f"out/{name}/"
    return {key.removeprefix(prefix): content for key, content in read_bucket(store).items() if key.startswith(prefix)}


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_records_have_the_bytes_of_this_machine(objective, engine, pool, store, corpus, vocabulary_file, tmp_path):
    here = build(corpus, vocabulary_file, tmp_path / "here", objective=objective)
    run_job(corpus, vocabulary_file, f"{OUTPUT}/r", *engine, *pool, f"--objective={objective}")
    assert below(store, "r") == read_folder(here)


@pytest.mark.parametrize("exchange", ["files", "engine"])
def test_records_have_the_same_bytes_in_the_process_of_the_job(
    exchange, engine, built, corpus, vocabulary_file, tmp_path
):
    options = [*engine, "--environment_type=LOOPBACK", f"--exchange={exchange}"]
    run_job(corpus, vocabulary_file, tmp_path / "r", *options)
    assert read_folder(tmp_path / "r") == read_folder(built)


def test_vocabulary_has_the_bytes_of_this_machine(engine, pool, store, corpus, tmp_path):
    from beam_jobs.build_vocabulary import build_vocabulary

    here = build_vocabulary(corpus, VocabularyConfig(size=300), tmp_path / "here")
    run_vocabulary_job(corpus, f"{OUTPUT}/v", 300, *engine, *pool)
    assert below(store, "v") == read_folder(here)

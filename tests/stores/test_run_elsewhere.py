"""A run whose results are in an object store: another machine finds them by their manifests, and runs nothing again."""

import re
import sys
from pathlib import Path

import pytest
import yaml

from flows import stages
from flows.parameters import resolve_config
from flows.plan import describe_plan
from flows.stages import MODEL, find_finetuned, find_pretrained, find_records, finetuning_stage, make_all, run_stage
from keras_bert_flow.results.stages.keys import folder_digest
from keras_bert_flow.stores.fetching import FETCHED, cache_root, fetch, fetch_manifest, stop_downloads
from keras_bert_flow.training.pretraining.pretrain import pretrain
from tests.commands import assert_refused, kbf
from tests.flows.conftest import tiny_config  # noqa: F401  a fixture
from tests.object_store import BUCKET, client, list_bucket
from tests.oracles.tiny_model import write_tiny_model
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records

pytestmark = pytest.mark.any_backend

RUNS = f"s3://{BUCKET}/runs"
ROOT = Path(__file__).parents[2]


@pytest.fixture
def config(tiny_config, trouble, monkeypatch, put):  # noqa: F811
    """Write a configuration with everything elsewhere, and return its path."""
    monkeypatch.chdir(tiny_config.parent)
    address = put(tiny_config.parent, "inputs")
    values = yaml.safe_load(tiny_config.read_text())
    values["runs"], values["corpus"]["input"] = RUNS, [f"{address}/corpus.txt"]
    values["task"] |= {"train": f"{address}/train.tsv", "dev": f"{address}/dev.tsv"}
    tiny_config.write_text(yaml.safe_dump(values))
    return tiny_config


def run_all(resolved):
    """Run the stages as the flow does, and return which had to run, and the folder of the report."""
    ran = []

    def perform(stage):
        if not run_stage(stage, lambda line: None):
            ran.append(stage.name)
        return stage.folder

    return ran, make_all(resolved, perform)


ALL = ["vocabulary", "records", "pretraining", "finetuning", "evaluation"]


@pytest.mark.slow
def test_another_machine_finds_every_stage_finished(config, tmp_path, monkeypatch, trouble, server):
    monkeypatch.setattr(stages, "COMMAND", (sys.executable, str(ROOT / "tests" / "flows" / "fake_command.py")))
    monkeypatch.setenv("FAKE_CALLS", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    ran, report = run_all(resolve_config(str(config), ["backend=torch"]))
    assert ran == ALL
    given = (tmp_path / "arguments.txt").read_text()
    assert f"--records {RUNS}/records/" in given and "s3:/bucket" not in given
    there = list_bucket(server[0])
    stop_downloads()
    monkeypatch.setenv("KBF_CACHE", str(tmp_path / "another machine"))
    trouble.seen.clear()
    resolved = resolve_config(str(config), ["backend=torch"])
    assert run_all(resolved) == ([], report)
    assert not [path for path, _ in trouble.reads() if path.endswith(("config.json", "metrics.json", "report.html"))]
    records = find_records(resolved)
    find_finetuned(resolved, find_pretrained(resolved, records)[-1])
    assert (fetch(report) / "report.md").read_text().startswith("| model")
    assert list_bucket(server[0]) == there
    (metrics,) = [key for key in there if key.endswith("metrics.json")]
    client(server[0]).put_object(Bucket=BUCKET, Key=metrics, Body=b"")
    assert not finetuning_stage(resolved, find_pretrained(resolved, records)[-1] / MODEL).is_finished()


@pytest.mark.slow
def test_digests_by_a_manifest_are_those_of_the_files(put, tmp_path):
    made = pretrain(make_tiny_config(), write_tiny_records(tmp_path / "records"), tmp_path / "run", lambda line: None)
    theirs = write_tiny_model(tmp_path / "theirs")
    for folder in (made, made / MODEL, theirs):
        there = f"{put(tmp_path, 'all')}/{folder.relative_to(tmp_path)}"
        assert folder_digest(fetch_manifest(there)) == folder_digest(folder)
    assert not list((cache_root() / FETCHED).glob("*/content/model/model.safetensors"))
    assert fetch(put(tmp_path / "run", "all/run")).joinpath("model", "model.safetensors").is_file()


@pytest.mark.slow
def test_kbf_run_finds_what_another_machine_made(config, tmp_path, monkeypatch, server):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    resolved = resolve_config(str(config), ["backend=torch"])
    assert run_all(resolved)[0] == ALL
    there = list_bucket(server[0])
    assert {key.split("/")[1] for key in there if key.startswith("runs/")} == set(ALL)
    assert not [key for key in there if ".work" in key]
    assert RUNS in describe_plan(resolved)
    monkeypatch.setenv("KBF_CACHE", str(tmp_path / "another machine"))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    again = kbf("run", config, "--backend", "torch")
    assert again[0] == 0 and again[1].count("is there") == len(ALL), again[1] + again[2]
    assert re.search(rf"Report: {RUNS}/evaluation/\w+/report.html", again[1])
    assert list_bucket(server[0]) == there


@pytest.mark.slow
def test_kbf_run_refuses_a_store_before_it_works(config, server, tmp_path):
    before = list_bucket(server[0])
    assert_refused(kbf("run", config, "--set", "runs=s3://nobucket/runs"), "s3://nobucket/runs")
    assert_refused(kbf("run", config, "--set", "runs=hdfs://h/runs"), "hdfs://h/runs", "host and the port of WebHDFS")
    nowhere = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    assert_refused(kbf("run", config, environment=nowhere), "s3://bucket/")
    assert list_bucket(server[0]) == before

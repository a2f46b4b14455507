"""Tables of tasks in an object store: the keys, models and answers of a copy on a disk, and refusals in one line."""

import json

import pytest

from keras_bert_flow.config.loading import load_config
from keras_bert_flow.results.stages.tasks import evaluation_key, finetuning_key
from keras_bert_flow.training.finetuning.task_data import fetch_tables
from tests.commands import assert_refused, kbf
from tests.object_store import BUCKET, client
from tests.oracles.tiny_model import write_tiny_model
from tests.oracles.tiny_records import write_tiny_records
from tests.troubled_store import FORBIDDEN

pytestmark = pytest.mark.any_backend

ROWS = "text\tlabel\na b\tyes\nb c\tno\nc a\tyes\n"
SETTINGS = "finetuning: {batch_size: 2, epochs: 1, seeds: [1], sequence_length: 32, compare_random: false}\n"


@pytest.fixture
def tables(tmp_path):
    folder = tmp_path / "tables"
    (folder / "race" / "high").mkdir(parents=True)
    (folder / "t.tsv").write_text(ROWS)
    (folder / "d.tsv").write_text(ROWS.replace("a b", "a c"))
    (folder / "race" / "high" / "1.txt").write_text(json.dumps({"a": 1}))
    return folder


def settings(place):
    names = (f"task.train={place}/t.tsv", f"task.dev={place}/d.tsv", f"task.extra_dev.more={place}/race")
    precision = ("pretraining.precision=float32", "finetuning.precision=float32")
    return load_config(None, (*names, f"evaluation.minimal_pairs={place}/t.tsv", *precision))


@pytest.mark.slow
def test_keys_are_those_of_the_bytes(tables, tmp_path, put, server):
    address, model = put(tables, "some/tables"), write_tiny_model(tmp_path / "model")
    records = write_tiny_records(tmp_path / "records")
    here, there = settings(tables), fetch_tables(settings(address))
    assert finetuning_key(there, model) == finetuning_key(here, model)
    assert evaluation_key(there, model, records) == evaluation_key(here, model, records)
    change = client(server[0]).put_object
    change(Bucket=BUCKET, Key="some/tables/race/high/1.txt", Body=b"{}")
    there = fetch_tables(settings(address))
    assert evaluation_key(there, model, records) != evaluation_key(here, model, records)
    assert finetuning_key(there, model) == finetuning_key(here, model)
    change(Bucket=BUCKET, Key="some/tables/t.tsv", Body=ROWS.encode() + b"a\tno\n")
    assert finetuning_key(fetch_tables(settings(address)), model) != finetuning_key(here, model)


def write_task(path, place):
    path.write_text(f"task: {{name: t, train: {place}/t.tsv, dev: {place}/d.tsv}}\n{SETTINGS}")
    return path


@pytest.mark.slow
def test_commands_read_tables_that_are_elsewhere(tables, tmp_path, put):
    address, model = put(tables, "some/tables"), write_tiny_model(tmp_path / "model")
    here, there = write_task(tmp_path / "here.yaml", tables), write_task(tmp_path / "there.yaml", address)
    made = []
    for name, task in (("here", here), ("there", there)):
        done = kbf("finetune", "--model", model, "--task", task, "--output", tmp_path / name)
        assert done[0] == 0, done[2]
        made.append(tmp_path / name / "pretrained" / "seed-1" / "model")
    weights = [(folder / "model.safetensors").read_bytes() for folder in made]
    keys = [json.loads((tmp_path / name / "manifest.json").read_text())["key"] for name in ("here", "there")]
    assert (weights[0], keys[0]) == (weights[1], keys[1])
    predicted = [kbf("predict", "--model", made[0], "--input", f"{place}/d.tsv") for place in (tables, address)]
    assert predicted[0] == predicted[1] and len(predicted[0][1].splitlines()) == 3
    (tmp_path / "p.jsonl").write_text(predicted[0][1])
    put(tmp_path, "all")
    for options in (("--model", made[0]), ("--predictions", "s3://bucket/all/p.jsonl")):
        scores = [kbf("evaluate", "--task", task, *options, "--json") for task in (here, there)]
        assert scores[0] == scores[1] and json.loads(scores[0][1])["accuracy"] >= 0, scores


def refuse(tmp_path, place, *words, environment=None):
    task, output = write_task(tmp_path / "task.yaml", place), tmp_path / "out"
    done = kbf("finetune", "--model", tmp_path / "model", "--task", task, "--output", output, environment=environment)
    assert_refused(done, *words)
    assert not output.exists()


@pytest.mark.slow
def test_tables_out_of_reach_are_refused_in_one_line(tables, tmp_path, put, trouble):
    write_tiny_model(tmp_path / "model")
    refuse(tmp_path, "s3://bucket/none", "s3://bucket/none/t.tsv, where there is nothing")
    address = put(tables, "some/tables")
    trouble.decide = lambda number, method, path: FORBIDDEN
    refuse(tmp_path, address, f"{address}/t.tsv", "credentials")
    # One line each: nothing was tried again
    refuse(tmp_path, address, address, "endpoint", "network", environment={"AWS_ENDPOINT_URL": "http://127.0.0.1:1"})
    refuse(tmp_path, "gs://bucket", "gs://bucket", environment={"STORAGE_EMULATOR_HOST": "http://127.0.0.1:1"})
    nobody = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": "", "AWS_EC2_METADATA_DISABLED": "true"}
    refuse(tmp_path, address, address, "redentials", environment=nobody | {"HOME": str(tmp_path / "home")})

"""No command writes over what it reads, however the two are named."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from keras_bert_flow.checks.run import check_run
from keras_bert_flow.cli import app
from keras_bert_flow.config.loading import make_config
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.files.outputs import check_apart, work_folder
from keras_bert_flow.results.publishing import Contents, publish
from keras_bert_flow.results.stages.keys import folder_files
from tests.patience import PATIENCE_SECONDS

TABLE = "text\tlabel\nfine\tyes\n"

# The words of each command, where {read} is what it reads and {written} what it writes.
COMMANDS = {
    "predict": "predict --model {model} --input {read} --output {written}",
    "search": "search --model {model} --lines {read} --output {written} a",
    "index": "search --model {model} --lines {read} --index {written} a",
    "glue-zip": "glue-zip {read} --output {written}",
    "init, task": "init {other} --task {read} --output {written}",
    "init, text": "init {read} --task {other} --output {written}",
    "init, dev": "init {other} --task {other} --dev {read} --output {written}",
    "vocab": "vocab --input {read} --output {written}",
    "vocab, configuration": "vocab --config {read} --output {written}",
    "records": "records --input {other} --vocab {read} --output {written}",
    "import": "records --import {read} --vocab {other} --output {written}",
    "pretrain": "pretrain --records {read} --output {written}",
    "distill": "distill --records {other} --teacher {read} --output {written}",
    "augment": "augment --config {other} --model {read} --output {written}",
    "finetune": "finetune --config {other} --model {read} --output {written}",
    "report": "report --finetuned {other} --pretrained {other} --earlier {read} --records {other} --output {written}",
    "convert": "convert {read} {written}",
    "export": "export {read} {written} --format onnx",
}


@pytest.fixture
def table(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "other.txt").write_text("text")
    path = tmp_path / "t.tsv"
    path.write_text(TABLE)
    return path


def run(words, table, written):
    names = {"model": table.parent / "model", "other": table.parent / "other.txt", "read": table, "written": written}
    return CliRunner().invoke(app, [word.format(**names) for word in words.split()]).exception


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS.keys())
def test_command_refuses_to_write_over_what_it_reads(table, words):
    error = run(words, table, table)
    assert isinstance(error, ValueError)
    assert f"The output must not replace what is read. Received: {table}, which is the input {table}." in str(error)
    assert table.read_text() == TABLE


@pytest.mark.parametrize(
    "words",
    [
        "predict --model {model} --output {written} a",
        "search --model {model} --lines {other} --output {written} a",
        "search --model {model} --lines {other} --index {written} a",
        "pretrain --records {other} --initial-model {model} --output {written}",
        "distill --records {other} --teacher {model} --output {written}",
        "augment --config {other} --model {model} --output {written}",
        "finetune --config {other} --model {model} --output {written}",
        "convert {model} {written} --dtype float16",
        "export {model} {written} --format onnx",
    ],
)
def test_nothing_is_written_into_a_model_that_is_read(table, words):
    """Its files are its identity, so that stages that were made from it would run again."""
    before = folder_files(table.parent / "model")
    assert "must not be in a model or result that is read" in str(run(words, table, table.parent / "model" / "new"))
    assert folder_files(table.parent / "model") == before


def test_results_of_a_run_do_not_go_into_its_models(table):
    model = str(table.parent / "model")
    for settings in ({"initial_model": model}, {"distillation": {"teacher": model}}):
        config = make_config(PipelineConfig, {"runs": f"{model}/runs"} | settings, "x.yaml")
        with pytest.raises(ValueError, match="The folder of results must not be in a model or result"):
            check_run(config, ())
        check_run(make_config(PipelineConfig, {"runs": f"{model}-runs"} | settings, "x.yaml"), ())


@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_links_are_the_file_that_they_lead_to(table, link):
    link(table, other := table.with_name("other.tsv"))
    for words, written in ((COMMANDS["predict"], other), (COMMANDS["glue-zip"], other.parent / "." / "other.tsv")):
        assert "must not replace what is read" in str(run(words, table, written))
    assert table.read_text() == TABLE


def test_file_of_the_model_is_not_replaced(table):
    error = run("predict --model {model} --output {written} a", table, table.parent / "model" / "config.json")
    assert "which is in the input" in str(error)


def test_what_lies_where_an_output_is_built_is_not_removed(table):
    work = work_folder(table.with_name("out"))
    work.mkdir()
    table.rename(inner := work / "t.tsv")
    assert "must not be built where an input lies" in str(
        run("records --input {written} --vocab {other} --output {read}", table.with_name("out"), inner)
    )
    assert inner.read_text() == TABLE


def test_new_files_and_folders_beside_inputs_pass(table):
    publish(table.parent / "made", "records", "key", lambda work: Contents())
    inputs = [table, table.parent, table.parent / "made", table.parent / "nowhere"]
    with pytest.raises(ValueError, match=r"Received: .*/made/x, in .*/made\. Choose a path outside it"):
        check_apart(table.parent / "made" / "x", inputs)
    for name in ("new.jsonl", "model/predictions.jsonl", "folder", "made"):
        check_apart(table.parent / name, inputs)


@pytest.mark.parametrize(("place", "word"), [("stdin", "standard input"), ("stdout", "standard output")])
def test_standard_streams_are_files_too(table, place, word):
    arguments = ["--output", table] if place == "stdin" else ["--input", table]
    command = [sys.executable, "-m", "keras_bert_flow", "predict", "--model", table.parent / "model", *arguments]
    with open(table, "r+b" if place == "stdin" else "ab") as file:
        done = subprocess.run(
            command,
            env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
            stderr=subprocess.PIPE,
            timeout=PATIENCE_SECONDS,
            check=False,
            **{place: file},
        )
    lines = done.stderr.decode().splitlines()
    assert (done.returncode, len(lines)) == (2, 1)
    assert f"{table}, which is {word}" in lines[0]
    assert table.read_text() == TABLE

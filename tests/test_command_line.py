"""What a newcomer meets: versions, completion, one name for a configuration file, and the next command to copy."""

import os
import shlex
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import psutil
import pytest

from keras_bert_flow.cli import COMMANDS, app, load_commands, options
from keras_bert_flow.cli.options import beside, carry, carry_to_training, inside
from tests.commands import assert_refused, kbf
from tests.patience import PATIENCE_SECONDS
from tests.test_cli import TEXT

ROOT = Path(__file__).parents[1]


def test_version_names_what_is_installed_and_loads_none_of_it():
    script = (
        "import sys, time; started = time.process_time(); sys.argv = ['kbf', '--version']\n"
        "from keras_bert_flow.__main__ import main\ntry:\n    main()\nexcept SystemExit:\n    pass\n"
        "print(time.process_time() - started, [name for name in ('keras', 'torch', 'jax', 'tensorflow', 'numpy',"
        " 'typer') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert lines["python"] == sys.version.split()[0]
    assert lines["keras"] == metadata.version("keras")
    assert {"keras-bert-flow", "jax", "tensorflow", "torch"} <= lines.keys()
    seconds, loaded = done.stderr.split(" ", 1)
    assert loaded.strip() == "[]"
    assert float(seconds) < 0.5  # of a processor; 0.1 when idle


def test_version_beside_another_option():
    status, printed, error = kbf("--debug", "--version")
    assert (status, error) == (0, "")
    assert printed.startswith("keras-bert-flow ")


def test_shell_completes_a_command():
    asked = {"_KBF_COMPLETE": "complete_bash", "COMP_WORDS": "kbf finet", "COMP_CWORD": "1"}
    script = "import sys; sys.argv = ['kbf']; from keras_bert_flow.__main__ import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | asked,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.stdout.split() == ["finetune"]


def test_every_command_is_found_in_its_file():
    commands = [command.name or command.callback.__name__ for command in app.registered_commands]
    commands += [group.name for group in app.registered_groups]
    assert sorted(commands) == sorted(name for names in COMMANDS.values() for name in names)
    assert load_commands(["--debug", "run"]) is app


@pytest.mark.slow
def test_configuration_has_one_name_and_its_old_ones_work(tmp_path):
    none = tmp_path / "none.yaml"
    for command in (("finetune", "--model", tmp_path, "--output", tmp_path / "o"), ("evaluate", "--model", tmp_path)):
        assert_refused(kbf(*command, "--config", none), "The configuration must be a file", "none.yaml")
        assert_refused(kbf(*command, "--task", none), "The configuration must be a file", "none.yaml")
        assert_refused(kbf(*command, "--task", none, "--config", none), "must be given once", "Leave out --task")
        assert_refused(kbf(*command), "--config")
        _, printed, _ = kbf(command[0], "--help")
        assert "--config" in printed and "--task" not in printed
    assert_refused(kbf("run", "--config", none, "--plan"), "The configuration must be a file", "none.yaml")
    assert_refused(kbf("run", none, "--config", none), "must be given once")


@pytest.mark.slow
def test_next_command_works_as_it_is_copied(tmp_path):
    place = tmp_path / "a place"
    place.mkdir()
    (place / "text.txt").write_text(TEXT)
    told = {"KBF_PROGRESS": "on"}
    made = kbf("vocab", "--input", place / "text.txt", "--size", "150", "--output", place / "v", environment=told)
    assert made[0] == 0 and made[1] == f"{place / 'v' / 'vocab.txt'}\n"
    command = shlex.split(made[2].splitlines()[-1].removeprefix("Next: "))
    command = command[command.index("records") :]
    made = kbf(*command, "--sequence-length", "32", "--max-predictions", "5", environment=told)
    assert made[0] == 0 and made[1] == f"{place / 'records'}\n"
    last = made[2].splitlines()[-1]
    assert f"pretrain --records '{place / 'records'}' --output '{place / 'pretrained'}'" in last
    assert "records.sequence_length=32" in last and "model.size=tiny" in last


def test_next_place_is_new(tmp_path):
    assert beside(tmp_path / "v", "records") == str(tmp_path / "records")
    (tmp_path / "records").mkdir()
    (tmp_path / "predictions.jsonl").touch()
    assert beside(tmp_path / "v", "records") == str(tmp_path / "records-2")
    assert beside(tmp_path / "v", "predictions.jsonl") == str(tmp_path / "predictions-2.jsonl")
    assert beside("s3://bucket/run/v/", "records") == "s3://bucket/run/records"


def test_next_command_reads_the_same_settings(monkeypatch):
    assert carry(Path("a.yaml"), ["b=1"], {"c": None, "d": True, "e": 0.5}, "jax") == [
        *("--config", "a.yaml", "--set", "b=1", "--set", "d=true", "--set", "e=0.5", "--backend", "jax"),
    ]
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    assert carry_to_training(None, ["model.size=mini"], {"corpus.strict": True}) == ["--set", "model.size=mini"]
    assert "pretraining.total_steps=1000" in carry_to_training(None, None, {})


@pytest.mark.parametrize("name", ["KBF_PROGRESS", "KBF_NEXT_STEPS"])
def test_next_step_is_not_told_where_it_is_not_wanted(monkeypatch, capsys, name):
    monkeypatch.setenv("KBF_PROGRESS", "on")
    monkeypatch.delenv("KBF_NEXT_STEPS", raising=False)
    options.say_next("predict", "a film")
    assert capsys.readouterr().err.endswith("predict 'a film'\n")
    monkeypatch.setenv(name, "off")
    options.say_next("predict", "a film")
    assert capsys.readouterr() == ("", "")


@pytest.mark.slow
def test_run_tells_at_once_what_it_will_do(tmp_path):
    """The time is that of a process of its own, from its start to its first line: of a processor, and on the clock."""
    (tmp_path / "mine.yaml").write_text("name: mine\ncorpus: {input: [none.txt]}\n")
    started = time.monotonic()
    run = subprocess.Popen(
        [sys.executable, "-m", "keras_bert_flow", "run", "mine.yaml"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "KBF_PROGRESS": "on"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    first = run.stderr.readline()
    seconds = time.monotonic() - started
    worked = sum(psutil.Process(run.pid).cpu_times()[:2])
    rest = run.stderr.read()
    run.communicate(timeout=PATIENCE_SECONDS)
    assert first == (
        "Run of mine: corpus, vocabulary, records, pretraining, finetuning, evaluation. Results in runs.\n"
    )
    assert "none.txt" in rest.splitlines()[-1] and run.returncode == 2
    assert worked < 2, worked  # 0.8
    assert seconds < 30, seconds  # 1 on an idle core; tests run on busy ones


def test_next_command_takes_a_path_that_begins_with_a_dash(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("KBF_PROGRESS", "on")
    monkeypatch.delenv("KBF_NEXT_STEPS", raising=False)
    monkeypatch.chdir(tmp_path)
    options.say_next("run", Path("-dash.yaml"), "--plan")
    assert capsys.readouterr().err.endswith("run ./-dash.yaml --plan\n")
    assert beside("-x/v", "records") == "./-x/records" and inside("-x", "model") == "./-x/model"
    assert carry(Path("-a.yaml")) == ["--config", "./-a.yaml"]

"""The commands that a report gives: they are commands of ours, for each kind of task."""

import ast
import re
import shlex
from pathlib import Path

import pytest
import typer.main

from keras_bert_flow.cli import app
from keras_bert_flow.config.finetuning import TASKS
from keras_bert_flow.evaluation.evaluate import describe_usage

ODD = Path("/results of 'mine'/$HOME/model")


@pytest.mark.parametrize("kind", TASKS)
def test_commands_parse(kind: str):
    shown, _ = describe_usage(ODD, kind, "jax")
    lines = [line for line in shown.splitlines() if line and not line.startswith("#")]
    commands = typer.main.get_command(app).commands
    assert len(lines) == 5
    for line in lines:
        program, name, *words = shlex.split(line)
        parsed = commands[name].make_context(name, words, resilient_parsing=False).params
        assert program == "kbf" and (name == "run" or ODD in map(Path, map(str, parsed.values())))


def test_python_names_the_folder():
    _, code = describe_usage(ODD, "classification", "jax")
    ast.parse(code)
    assert len(re.findall(re.escape(repr(str(ODD))), code)) == 2

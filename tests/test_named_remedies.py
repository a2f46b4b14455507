"""Every setting, command, option and Python name that a message names exists.

The texts are the strings of the sources that are no docstrings: errors, warnings, log lines, help, and the constants
that these are made of. Of an f-string the constant parts are read, with a gap for what is filled in.
"""

import ast
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Literal, get_args, get_origin

import click
import pytest
import typer
from pydantic import BaseModel

import keras_bert_flow
from keras_bert_flow.cli import app
from keras_bert_flow.config.finetuning import TASKS
from keras_bert_flow.config.pipeline import PipelineConfig
from tests.test_architecture import ROOT, SOURCES

pytestmark = pytest.mark.any_backend

GAP = "\0"  # where an f-string is filled in
SECTIONS = [name for name in PipelineConfig.model_fields if name not in ("name", "seed", "minutes")]
SETTING = re.compile(
    rf"(?<![\w./{{-])({'|'.join(SECTIONS)})((?:\.[a-z_]\w*)+)(?![\w(/{GAP}]|\.\w)"
    rf"(?:(?:=|: )(?P<value>[a-z_][a-z_0-9]*)(?![\w.{GAP}]))?"
)
LINE = re.compile(r"`([a-z]+(?:_[a-z]+)*)(?:: |=)[^`]*`")  # of a configuration, in a section that the message names
COMMAND = re.compile(r"(?<![\w/.-])kbf ([a-z][a-z-]*)((?:(?![.;,)] |[.;,)]$|`| or ).)*)", re.DOTALL)
OPTION = re.compile(r"(?<![\w-])--([a-z][a-z-]+)(?![\w-])")
PYTHON = re.compile(r"(?<![\w./])kbf\.([A-Za-z_]\w*)")
FILES = re.compile(r"\.(txt|jsonl?|safetensors|keras|onnx|tflite|h5|md|npy)$")
# Dotted names in messages that are no settings.
OTHERS = {
    "model.preprocessor": "attribute of a loaded model",
    "model.vocab": "field of tokenizer.json",
    "model.dropout": "field of tokenizer.json",
    "model.max_input_chars_per_word": "field of tokenizer.json",
    "model.options.pad_token_id": "free options of a family",
    "task.extra_dev.test": "a name of the user's",
    "vocabulary.vocabulary_size": "entry of an old manifest",
    "records.vocabulary_size": "entry of an old manifest",
}
PLACEHOLDERS = {"key": "any setting", "license": "of a model card"}
# Options of other programs, and of every one of ours.
THEIRS = {
    "upgrade": "pip",
    "no-deps": "pip",
    "target": "pip",
    "nproc-per-node": "torchrun",
    "watch": "prefect",
    "runner": "Apache Beam",
    "help": "all",
}


def find_faults(text: str) -> Iterator[str]:
    """Yield what a text names and what does not exist."""
    for match in SETTING.finditer(text):
        name = match[1] + match[2]
        if FILES.search(name) or name in OTHERS:
            continue
        found = find_annotations(name.split("."))
        if not found:
            yield f"setting {name}"
        words = {word for kind in found for word in list_words(kind)}
        if words and match["value"] and match["value"] not in words:
            yield f"value {name}={match['value']}"
    yield from (f"setting {name}" for name in LINE.findall(text) if name not in {*all_settings(), *PLACEHOLDERS})
    for match in COMMAND.finditer(text):
        command, rest = find_command(match[1], match[2])
        if command is None:
            yield f"command kbf {match[1]}{rest}"
            continue
        known = {*options_of(command), *THEIRS} | (options_of_parsers() if takes_others(command) else set())
        yield from (f"option --{name} of kbf {match[1]}" for name in OPTION.findall(rest) if name not in known)
    yield from (f"option --{name}" for name in OPTION.findall(text) if name not in all_options())
    yield from (f"name kbf.{name}" for name in PYTHON.findall(text) if name not in keras_bert_flow.__all__)


@cache
def parsed_sources() -> dict[str, list[ast.AST]]:
    """Return the nodes of every file."""
    return {str(path.relative_to(ROOT)): [*ast.walk(ast.parse(path.read_bytes()))] for path in SOURCES}


def read_texts(nodes: list[ast.AST]) -> Iterator[tuple[int, str]]:
    """Yield the line and the text of every string of a file that reads as one, and is no docstring."""
    skipped = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        text = ""
        if isinstance(node, ast.JoinedStr) and id(node) not in skipped:
            skipped |= {id(part) for part in node.values}
            text = "".join(part.value if isinstance(part, ast.Constant) else GAP for part in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skipped:
            text = node.value
        if " " in text and "<" not in text[:1] and "{ color" not in text:  # no names alone, and no style sheets
            yield node.lineno, text


@cache
def root() -> click.Group:
    return typer.main.get_command(app)


def find_command(name: str, rest: str) -> tuple[click.Command | None, str]:
    """Return a command of `kbf`, or of one of its groups, and what follows its name; None if there is none."""
    command = root().commands.get(name)
    if not hasattr(command, "commands"):
        return command, rest
    named = re.match(r" ([a-z][a-z-]*)(.*)", rest, re.DOTALL)
    if named is None:  # of the group as a whole
        return command, rest
    return command.commands.get(named[1]), named[2]


def options_of(command: click.Command) -> set[str]:
    spelt = [option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)]
    return {option.removeprefix("--") for option in spelt}


def takes_others(command: click.Command) -> bool:
    return bool(command.context_settings.get("ignore_unknown_options"))


@cache
def all_options() -> set[str]:
    commands: list[Any] = [root()]
    for command in commands:
        commands += getattr(command, "commands", {}).values()
    return {*THEIRS, *options_of_parsers()}.union(*map(options_of, commands))


@cache
def options_of_parsers() -> set[str]:
    """Return the options that sources add to a parser of `argparse`, such as Apache Beam's."""
    calls = [
        node
        for nodes in parsed_sources().values()
        for node in nodes
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "").endswith("add_argument")
    ]
    names = [part.value for call in calls for part in call.args if isinstance(part, ast.Constant)]
    return {name.removeprefix("--") for name in names}


def find_annotations(path: list[str]) -> list[Any]:
    """Return the annotations of a setting, one for each kind of task that has it; none if there is no such setting."""
    kinds: list[Any] = [PipelineConfig]
    for name in path:
        models = [model for kind in kinds for model in list_models(kind)]
        kinds = [model.model_fields[name].annotation for model in models if name in model.model_fields]
    return kinds


@cache
def all_settings() -> set[str]:
    """Return the names of the settings of all sections."""
    names, kinds = set(), [PipelineConfig]
    for kind in kinds:
        names |= {*kind.model_fields}
        kinds += [model for field in kind.model_fields.values() for model in list_models(field.annotation)]
    return names


def list_models(annotation: Any) -> list[type[BaseModel]]:
    if annotation is PipelineConfig.model_fields["task"].annotation:
        return list(TASKS.values())
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in list_models(part)]


def list_words(annotation: Any) -> list[str]:
    """Return the words that a setting may be, none if it may be any text or number."""
    if annotation is bool:
        return ["true", "false"]
    if annotation is type(None):
        return ["null"]
    if get_origin(annotation) is Literal:
        return [str(word) for word in get_args(annotation)]
    parts = [list_words(part) for part in get_args(annotation)]
    return [word for words in parts for word in words] if parts and all(parts) else []


def test_what_messages_name_exists():
    faults = [
        f"{path}:{line}: no {fault}"
        for path, nodes in parsed_sources().items()
        for line, text in read_texts(nodes)
        for fault in find_faults(text)
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("Lower finetuning.learning_rates.", "setting finetuning.learning_rates"),
        ("Set `finetuning.non_finite: skip`.", "setting finetuning.non_finite"),
        ("Set pretraining.non_finite=leave for it.", "value pretraining.non_finite=leave"),
        ("In fine-tuning `non_finites: skip` leaves them out.", "setting non_finites"),
        ("Try task.kind=sorting here.", "value task.kind=sorting"),
        ("Try --set records.max_prediction=3.", "setting records.max_prediction"),
        ("See `kbf run gcs`, or `kbf cleanup`.", "command kbf cleanup"),
        ("Use `kbf runs sweep` now.", "command kbf runs"),
        ("Use `kbf pretrain --new-head` now.", "option --new-head of kbf pretrain"),
        ("Use --newer-head now.", "option --newer-head"),
        ("Call kbf.loads(...) on it.", "name kbf.loads"),
    ],
)
def test_what_does_not_exist_is_found(text, fault):
    ((_, read),) = read_texts([*ast.walk(ast.parse(f"raise ValueError({text!r})"))])
    assert any(found.startswith(fault) for found in find_faults(read)), [*find_faults(read)]


@pytest.mark.parametrize(
    "text",
    [
        "Set task.scheme, finetuning.grid.epochs, or distillation.student.max_positions=64.",
        "Use `kbf finetune --new-head` (finetuning.new_head: true), or kbf runs gc --help.",
        "Set pretraining.non_finite=skip; second_phase=null, as model.safetensors has it.",
        "Try kbf records --exchange=files --runner=FlinkRunner, or kbf.load(folder).",
    ],
)
def test_what_exists_is_not_found(text):
    assert [*find_faults(text)] == []


def test_parts_of_messages_are_read_with_gaps():
    source = '"""Set a.b."""\nNAME = "short"\nprint(f"of {x} it", "a text")'
    assert [text for _, text in read_texts([*ast.walk(ast.parse(source))])] == [f"of {GAP} it", "a text"]

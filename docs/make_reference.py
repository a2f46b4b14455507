"""Write docs/reference/: every command, every setting and every public name of Python, from the code.

    python docs/make_reference.py            # after a change; a test compares what is there

Nothing here knows a command, a setting or a public name.
"""

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import typer.main
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import keras_bert_flow as kbf
from keras_bert_flow.cli import app
from keras_bert_flow.config.finetuning import TASKS
from keras_bert_flow.config.limits import Settings
from keras_bert_flow.config.pipeline import PipelineConfig

FOLDER = Path(__file__).parent / "reference"
MADE = "<!-- Made by docs/make_reference.py from the code; not to be edited. -->"


def describe_commands() -> str:
    """Return a page with a section a command: what it does, its arguments and options."""
    lines = [
        MADE,
        "# Commands",
        "",
        "`kbf COMMAND --help` says the same. Every command takes `kbf --debug` before it.",
        "",
    ]
    for name, command in walk(typer.main.get_command(app), "kbf"):
        lines += [f"## {name}", "", clean(command.help or ""), ""]
        rows = [
            describe_parameter(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)
        ]
        rows = [row for row in rows if row is not None]
        if rows:
            lines += ["| option | what | default |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


def walk(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield every command that does something, with its whole name."""
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
        return
    for child in sorted(children):
        yield from walk(children[child], f"{name} {child}")


def describe_parameter(parameter: Any) -> str | None:
    if parameter.name == "help":
        return None
    is_option = parameter.param_type_name == "option"
    written = [*parameter.opts, *parameter.secondary_opts]
    names = (
        ", ".join(f"`{name}`" for name in written) if is_option else f"`{parameter.metavar or parameter.name.upper()}`"
    )
    return row(names, getattr(parameter, "help", None) or "", describe_value(parameter.default))


def describe_settings() -> str:
    """Return a page with a section for each of a configuration, and for each kind of task."""
    lines = [
        MADE,
        "# Settings",
        "",
        "A configuration is YAML; what it leaves out has the default. `--set section.name=value` changes one.",
        "",
    ]
    lines += ["## The top", "", *table(PipelineConfig, top=True), ""]
    for name, field in PipelineConfig.model_fields.items():
        section = find_section(field.annotation)
        if section is not None and name != "task":
            lines += [f"## {name}", "", clean(section.__doc__ or ""), "", *table(section), ""]
    for kind, section in TASKS.items():
        lines += [f"## task, kind {kind}", "", clean(section.__doc__ or ""), "", *table(section), ""]
    return "\n".join(lines)


def table(section: type[Settings], top: bool = False) -> list[str]:
    fields = section.model_fields.items()
    shown = [
        (name, field) for name, field in fields if not (top and (name == "task" or find_section(field.annotation)))
    ]
    rows = [
        row(f"`{name}`", f"{field.description} {describe_type(field)}", describe_default(field))
        for name, field in shown
    ]
    return ["| setting | what | default |", "|---|---|---|", *rows]


def find_section(annotation: Any) -> type[Settings] | None:
    """Return the section that a field of the configuration is; None for a plain setting."""
    options = get_args(annotation) if get_origin(annotation) in (UnionType, Union) else (annotation,)
    found = [option for option in options if isinstance(option, type) and issubclass(option, Settings)]
    return found[0] if len(found) == 1 else None


def describe_type(field: FieldInfo) -> str:
    """Write the choices and bounds of a setting."""
    annotation = field.annotation
    options = get_args(annotation) if get_origin(annotation) in (UnionType, Union) else (annotation,)
    choices = [value for option in options if get_origin(option) is Literal for value in get_args(option)]
    words = {"ge": "at least {}", "gt": "above {}", "le": "at most {}", "lt": "below {}"}
    bounds = [
        words[name].format(f"{getattr(part, name):,}")
        for part in field.metadata
        for name in words
        if getattr(part, name, None) is not None
    ]
    said = [", ".join(f"`{choice}`" for choice in choices)] if choices else []
    return "".join(f"{part.capitalize() if part[0] != '`' else part}. " for part in [*said, ", ".join(bounds)] if part)


def describe_default(field: FieldInfo) -> str:
    default = field.default_factory() if field.default_factory else field.default
    if default is PydanticUndefined or isinstance(default, Settings):
        return ""
    return describe_value(list(default) if isinstance(default, tuple) else default)


def describe_value(value: Any) -> str:
    return "" if value in (None, False, (), []) or callable(value) else f"`{value}`"


def describe_names() -> str:
    """Return a page with a section for each public name: its arguments, its docstring and its example.

    It is read from the source: to import the names would import a backend.
    """
    lines = [
        MADE,
        "# Python",
        "",
        "The public names of `import keras_bert_flow as kbf`. A test runs the examples, where `np` is NumPy and the "
        "working directory has `run.yaml`, a configuration; `records`, made by `kbf records`; `model`, a pre-trained "
        "model directory; `classifier`, a fine-tuned one; `reviews.tsv`, a table with the columns `text` and `label`; "
        "`texts.txt`, a text per line; `pairs.jsonl`, minimal pairs; and in `runs` the results of `kbf run run.yaml`.",
        "",
    ]
    for name in kbf.__all__:
        path = Path(kbf.__file__).parent.joinpath(*kbf._HOMES[name].split(".")).with_suffix(".py")
        found = {
            node.name: node  # of an overloaded function the last, with its docstring
            for node in ast.parse(path.read_text(encoding="utf-8")).body
            if isinstance(node, ast.ClassDef | ast.FunctionDef)
        }
        docstring = ast.get_docstring(found[name]) or ""
        lines += [f"## {name}", "", *write_signature(name, found), *write_docstring(docstring), ""]
    return "\n".join(lines)


def write_signature(name: str, found: dict[str, ast.ClassDef | ast.FunctionDef]) -> list[str]:
    """Write a call with the arguments of a function or a class, whose constructor may be that of a base class."""
    node: Any = found[name]
    while isinstance(node, ast.ClassDef):
        methods = {part.name: part for part in node.body if isinstance(part, ast.FunctionDef)}
        bases = [base.id for base in node.bases if isinstance(base, ast.Name) and base.id in found]
        node = methods.get("__init__") or (found[bases[0]] if bases else None)
    if node is None:
        return []
    arguments = node.args
    for argument in [*arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]:
        if argument is not None:
            argument.annotation = None
    if arguments.args and arguments.args[0].arg == "self":
        del arguments.args[0]
    return ["```", f"kbf.{name}({ast.unparse(arguments)})", "```", ""]


def write_docstring(docstring: str) -> list[str]:
    """Write a docstring as Markdown: arguments as a list, the example as a block."""
    before, _, example = docstring.partition("\nExample:\n")
    lines: list[str] = []
    section = ""
    for line in before.strip().splitlines():
        if re.fullmatch(r"(Call arguments|Args|Returns|Raises|Attributes):", line):
            section = line[:-1]
            lines += [*([""] if lines[-1] else []), f"**{section}**", ""]
        elif section and re.match(r"    \S", line) and section != "Returns":
            lines.append(re.sub(r"^    ([\w, *]+): ", r"- `\1`: ", line) if ": " in line else f"- {line.strip()}")
        elif section and line.startswith("    "):
            lines.append(line.strip() if section == "Returns" else f"  {line.strip()}")
        else:
            section = ""
            lines += [*([""] if line.startswith("Source:") and lines[-1] else []), line.strip()]
    if example:
        lines += ["", "```pycon", *inspect.cleandoc(example).splitlines(), "```"]
    return lines


def row(*cells: str) -> str:
    return "| " + " | ".join(clean(cell).replace("|", r"\|") for cell in cells) + " |"


def clean(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


PAGES = {"commands.md": describe_commands, "settings.md": describe_settings, "python.md": describe_names}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    for name, describe in PAGES.items():
        (FOLDER / name).write_text(describe().rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

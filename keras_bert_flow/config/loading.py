"""Read a configuration from YAML and `--set`, and say in one line what is wrong with it."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, overload

from pydantic import ValidationError

from keras_bert_flow.config.finetuning import TASKS, kind_of
from keras_bert_flow.config.limits import Settings
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.console.terminal import abridge, hide_in_addresses
from keras_bert_flow.files.documents import MAX_YAML_BYTES, parse_yaml
from keras_bert_flow.files.paths import find_address

MAX_SHOWN_ERRORS = 3
_Kind = TypeVar("_Kind", bound=Settings)


@overload
def load_config(path: str | Path | None, overrides: Sequence[str] = ()) -> PipelineConfig: ...
@overload
def load_config(path: str | Path | None, overrides: Sequence[str], kind: type[_Kind]) -> _Kind: ...
def load_config(path: str | Path | None, overrides: Sequence[str] = (), kind: Any = PipelineConfig) -> Any:
    """Read a YAML file and apply `key.sub=value` overrides.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: not YAML, an unknown key, or a value out of range; the message says which and what is valid.
    Example:
        >>> config = kbf.load_config("run.yaml", ["pretraining.learning_rate=1e-4"])
        >>> config.name, config.pretraining.learning_rate
        ('reviews', 0.0001)
    """
    values: Any = {}
    if path is not None:
        if not Path(path).is_file():
            raise FileNotFoundError(
                f"The configuration must be a file. Received: {path}. `kbf configs list` shows some."
            )
        with open(path, "rb") as file:
            values = _parse_yaml(file.read(MAX_YAML_BYTES + 1), str(path)) or {}
        if not isinstance(values, dict):
            raise ValueError(
                f"A configuration must be `key: value` lines. Received: {path}. `kbf configs list` shows some."
            )
    for override in overrides:
        _apply_override(values, override, kind)
    return make_config(kind, values, str(path or "--set"), [override.partition("=")[0] for override in overrides])


def make_config(kind: type[_Kind], values: dict, source: str, overridden: Sequence[str] = ()) -> _Kind:
    """Build a configuration, turning what pydantic says into one line a person can act on.

    Args:
        source: where the values come from.
        overridden: settings that come from `--set`.
    """
    for text in _find_texts(values):  # before pydantic, which may show a password with another error
        find_address(text)
        if (hidden := hide_in_addresses(text)) != text:  # as in an option of Beam's, which is stored with the results
            raise ValueError(
                f"An address in a setting must not hold a password. Received: {hidden}. Leave it out, and give "
                "credentials in the environment."
            )
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        found = error.errors()
        more = f"; and {len(found) - MAX_SHOWN_ERRORS} more errors" if len(found) > MAX_SHOWN_ERRORS else ""
        shown = [_explain(kind, item, source, overridden) for item in found[:MAX_SHOWN_ERRORS]]
        raise ValueError("; ".join(shown) + more) from None


def _find_texts(values: Any) -> Iterator[str]:
    if isinstance(values, dict | list | tuple):
        for value in values.values() if isinstance(values, dict) else values:
            yield from _find_texts(value)
    elif isinstance(values, str):
        yield values


def _parse_yaml(text: str | bytes, source: str) -> Any:
    try:
        return parse_yaml(text)
    except ValueError as error:
        raise ValueError(f"A configuration must be plain YAML. Received: {abridge(source)}: {error}.") from None


def _apply_override(values: dict, override: str, kind: type[Settings]) -> None:
    path, equals, text = override.partition("=")
    settings: dict = values
    if not equals or not path:
        raise ValueError(
            f"An override must read key=value. Received: {override}. Try --set pretraining.total_steps=100."
        )
    *parents, leaf = path.split(".")
    for parent in parents:
        if values.get(parent) is None:  # absent, or `second_phase: null` as a written configuration has it
            values[parent] = {}
        values = values[parent]
        if not isinstance(values, dict):
            raise ValueError(f"An override must name a setting inside a section. Received: {override}.")
    # A `*` would begin an alias, of which there can be none here; it is the glob in corpus.input=*.txt.
    value = text if text.startswith("*") else _parse_yaml(text, override)
    is_single = isinstance(value, str | int | float) and _is_list(kind, settings, path.split("."))
    values[leaf] = [value] if is_single else value


def _is_list(kind: type[Settings], values: Any, path: Sequence[str]) -> bool:
    """Tell whether a setting is a list, which `--set` may give as a single value."""
    annotation: Any = kind
    for name in path:
        fields = getattr(annotation, "model_fields", {})
        if name not in fields:  # as `make_config` will say
            return False
        section = values.get(name) if isinstance(values, dict) else None
        annotation, values = fields[name].annotation, section
        if annotation is PipelineConfig.model_fields["task"].annotation:
            annotation = TASKS.get(str(kind_of(section)))
        elif get_origin(annotation) is UnionType:
            annotation = next(option for option in get_args(annotation) if option is not type(None))
    return get_origin(annotation) is tuple


def _explain(kind: type[Settings], item: Mapping[str, Any], source: str, overridden: Sequence[str]) -> str:
    path = ".".join(str(part) for place, part in enumerate(item["loc"]) if not _is_tag(item["loc"], place))
    source = "--set" if any(path == name or path.startswith(f"{name}.") for name in overridden) else source
    if item["type"] == "extra_forbidden":
        names = _fields_at(kind, item["loc"][:-1])
        near = get_close_matches(str(item["loc"][-1]), names, 1)
        remedy = f" Did you mean `{near[0]}`?" if near else ""
        return f"{source}: `{path}` is no known setting. Valid names: {', '.join(names)}.{remedy}"
    if item["type"] == "union_tag_invalid":
        kinds = ", ".join(TASKS)
        return f"{source}: `{path}.kind` must be one of {kinds}. Received: {kind_of(item['input'])!r}."
    message = item["msg"].removeprefix("Value error, ").rstrip(".").replace("valid tuple", "valid list")
    place = f"`{path}`: " if path else ""
    received = f" Received: {abridge(repr(item['input']))}." if item["type"] != "value_error" else ""
    is_word = item["type"] == "string_type" and isinstance(item["input"], bool)
    remedy = f" Put it in quotes: '{str(item['input']).lower()}'." if is_word else ""
    return f"{source}: {place}{message}.{received}{remedy}"


def _is_tag(path: Sequence[str | int], place: int) -> bool:
    """Say whether a part of pydantic's path is the kind of the task, which it puts in, and no setting."""
    return place > 0 and path[place - 1] == "task" and path[place] in TASKS


def _fields_at(kind: Any, path: Sequence[str | int]) -> list[str]:
    names: Any = None  # of a dictionary of sections, whose keys are no settings
    for place, part in enumerate(path):
        if _is_tag(path, place):
            kind = TASKS[str(part)]
            continue
        if names is not None:
            kind, names = names, None
            continue
        annotation = kind.model_fields[str(part)].annotation
        if get_origin(annotation) is dict:
            names = get_args(annotation)[1]
            continue
        kind = next((option for option in get_args(annotation) if option is not type(None)), annotation)
    return list(kind.model_fields)

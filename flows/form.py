"""Forms of flows in Prefect's UI: a few settings as fields, and the setting of the configuration for each field.

A flow is written as a function of a configuration; `with_form` turns it into a function of a file, those settings, and
any others as `key=value`. A deployment belongs to one configuration: its form shows that configuration's values, with
the bounds and descriptions of the settings, so values out of bounds are refused before a run starts.
"""

import inspect
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

from prefect import Flow
from prefect.runtime import flow_run
from prefect.utilities.callables import parameter_schema

from flows.parameters import CONFIG, DEFAULT_CONFIG, FIELDS, OVERRIDES, list_overrides, resolve_config
from flows.plan import holding_plan
from keras_bert_flow.config.finetuning import TASKS
from keras_bert_flow.config.limits import Settings
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.config.pipeline import ONE_RUN, PipelineConfig
from keras_bert_flow.results.artifacts import RUN_NAME

CONFIG_TITLE, CONFIG_HELP = "Configuration", "File of settings, relative to the working directory."
OVERRIDES_TITLE, OVERRIDES_HELP = "Further settings", "`key=value`, such as finetuning.epochs=1; they win."
MAX_SHOWN = 60  # characters of a setting in a run's name
OVERRIDE = rf"^({'|'.join(PipelineConfig.model_fields)})(\.[^=]+)?=.*$"


def with_form(*names: str) -> Callable[[Callable[..., str]], Callable[..., str]]:
    """Turn a function of a configuration into one of a file, fields of the form, and further settings.

    Args:
        names: the form fields that are relevant to the function.
    """

    def decorate(run: Callable[..., str]) -> Callable[..., str]:
        _, *own = inspect.signature(run).parameters.values()
        asked: dict[str, tuple[Any, Any]] = {CONFIG: (str, DEFAULT_CONFIG)} | {
            name: (FIELDS[name][0], None) for name in names
        }
        asked |= {OVERRIDES: (tuple[str, ...], ())}
        parameters = [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=annotation, default=default)
            for name, (annotation, default) in asked.items()
        ]
        signature = inspect.Signature([*parameters, *own], return_annotation=str)

        @wraps(run)
        def start(*arguments: Any, **named: Any) -> str:
            given = signature.bind(*arguments, **named).arguments
            fields = {name: given.pop(name) for name in names if name in given}
            overrides = list_overrides(fields, given.pop(OVERRIDES, ()))
            config = resolve_config(given.pop(CONFIG, DEFAULT_CONFIG), overrides)
            with _naming_processes(), holding_plan(config):
                return run(config, **given)

        del start.__wrapped__  # otherwise its signature would be used for `start`
        start.__signature__ = signature  # type: ignore[attr-defined]  # read by `inspect`
        start.__doc__ = _document(run, names)
        return start

    return decorate


@contextmanager
def _naming_processes() -> Iterator[None]:
    """Let the locks of this process and its children, started within the block, name the run that holds them."""
    before = os.environ.get(RUN_NAME)
    os.environ[RUN_NAME] = flow_run.name or before or ""
    try:
        yield
    finally:
        os.environ.pop(RUN_NAME)
        if before is not None:
            os.environ[RUN_NAME] = before


def name_run() -> str:
    """Name a run after its configuration, form fields and overrides: `quickstart, tiny, backend=jax`.

    A name that it was given stays: Prefect names the others at random, `brave-lion`.
    """
    if flow_run.name is not None and not is_random_name(flow_run.name):
        return flow_run.name
    given = flow_run.parameters
    chosen = [str(given[name]) for name in ("size", "backend") if given.get(name)]
    chosen[1:1] = [f"{given['steps']} steps"] if given.get("steps") else []
    chosen += [change for change in given.get(OVERRIDES) or () if change != ONE_RUN and len(change) <= MAX_SHOWN]
    return ", ".join([Path(given[CONFIG]).stem, *chosen])


def is_random_name(name: str) -> bool:
    """Return whether Prefect makes such names: two words of the lists of `coolname`, which it depends on."""
    from coolname.data import config

    entries: list[Any] = [*config.values()]
    words = {word for entry in entries for word in entry.get("words", ())}
    return name.count("-") == 1 and words.issuperset(name.split("-"))


def describe_form(flow: Flow, config: PipelineConfig, path: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the parameters of a flow's form, filled in from a configuration, and their JSON schema.

    Args:
        path: file of the configuration, the only one that the form accepts.
    """
    schema = parameter_schema(flow).model_dump()
    values: dict[str, Any] = {CONFIG: path}
    for name, entry in schema["properties"].items():
        entry.pop("anyOf", None)
        entry.pop("default", None)
        if name in FIELDS:
            _, title, setting = FIELDS[name]
            values[name], described = _read(config, setting)
            entry |= described | {"title": title, "default": values[name]}
            if name == "steps":
                entry |= _describe_least_steps(config, path, entry["description"])
        elif name == CONFIG:
            entry |= {"title": CONFIG_TITLE, "enum": [path], "default": path}
        elif name == OVERRIDES:
            items = {"type": "string", "pattern": OVERRIDE}
            entry |= {"title": OVERRIDES_TITLE, "type": "array", "items": items, "default": []}
        else:  # a folder, which the flow finds itself if none is given
            entry |= {"title": f"{name.capitalize()}: folder", "type": "string"}
    return values, schema


def _read(config: PipelineConfig, setting: str) -> tuple[Any, dict[str, Any]]:
    """Return the value of a setting, and its JSON schema: its type, its bounds, its description."""
    *parents, leaf = setting.split(".")
    section: Settings = config
    for parent in parents:
        section = getattr(section, parent)
    value = getattr(section, leaf)
    described = type(section).model_json_schema()["properties"][leaf]
    if setting == FIELDS["kind"][2]:  # the schema of each kind has only that kind
        described = {"type": "string", "enum": list(TASKS), "description": described["description"]}
    schema = {name: entry for name, entry in described.items() if name not in ("title", "default")}
    return list(value) if isinstance(value, tuple) else value, schema


def _describe_least_steps(config: PipelineConfig, path: str, description: str) -> dict[str, Any]:
    """Return the entries of the field `steps` whose configuration has a warm-up of its own, which must fit in them."""
    least = config.pretraining.warmup_steps
    try:
        load_config(path, [f"{FIELDS['steps'][2]}=1"])
    except ValueError:
        further = "`pretraining.total_steps` and `pretraining.warmup_steps` in the further settings"
        return {"minimum": least, "description": f"{description} At least its warm-up; for fewer set {further}."}
    return {}


def _document(run: Callable[..., str], names: Sequence[str]) -> str:
    """Return the docstring of a flow, from which Prefect takes the descriptions in a form unless given elsewhere."""
    lines = [f"{CONFIG}: {CONFIG_HELP}", f"{OVERRIDES}: {OVERRIDES_HELP}"]
    lines += [f"{name}: {FIELDS[name][1]}, in place of `{FIELDS[name][2]}`." for name in names]
    summary, _, own = (inspect.getdoc(run) or "").partition("\nArgs:\n")
    summary, _, returns = summary.partition("\nReturns:\n") if not own else (summary, "", "")
    arguments = "\n".join(f"    {line}" for line in lines)
    return f"{summary}\nArgs:\n{arguments}\n" + (own or f"Returns:\n{returns}")

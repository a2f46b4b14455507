"""Identity of a run: what must not change when it is resumed, and what has changed if it did."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.records.tfrecord import RECORD_SUFFIX
from keras_bert_flow.results.artifacts import OpenedFiles
from keras_bert_flow.results.stages.keys import Stage, folder_files, task_digests
from keras_bert_flow.results.stages.models import DISTILLATION, MONITORING, PRETRAINING, list_off
from keras_bert_flow.results.stages.tasks import FINETUNING, drop_unused
from keras_bert_flow.text.tokenizers.files import find_tokenizer_file

# Settings that may change during a run. Of these, the first three can affect the weights: see `identity.list_spans`.
STEERING = ("total_steps", "evaluate_every_steps", "keep_best")
CHANGEABLE = {*STEERING, *MONITORING, "publish"}
REVISION = "revision"
EARLIER = ("code", "package")  # what identities of earlier versions of this package hold in place of the revision
MAX_SHOWN = 5
DIGITS = 12  # shown of a digest
Facts = Mapping[str, Any]


def pretraining_identity(
    config: PipelineConfig, records: Path, initial_model: Path | None = None, opened: OpenedFiles | None = None
) -> dict[str, Any]:
    """Return the identity of a pre-training run: everything but the settings in `CHANGEABLE`."""
    files = folder_files(records, opened)
    settings = config.model_dump(mode="json", include={"seed", "model", "pretraining"})
    unseen = {*CHANGEABLE, *list_off(config.pretraining)}
    settings["pretraining"] = {name: value for name, value in settings["pretraining"].items() if name not in unseen}
    return settings | {
        "vocabulary": files[find_tokenizer_file(records).name],
        "records": {name: digest for name, digest in files.items() if name.endswith(RECORD_SUFFIX)},
        "initial_model": {} if initial_model is None else folder_files(initial_model),
        **_software(PRETRAINING),
    }


def distillation_identity(
    config: PipelineConfig, records: Path, teacher: Path, opened: OpenedFiles | None = None
) -> dict[str, Any]:
    """Return the identity of a distillation run; see `pretraining_identity`."""
    facts = pretraining_identity(config.student, records, opened=opened)
    distillation = config.needed_distillation
    unseen = {*CHANGEABLE, "teacher", "student", *list_off(distillation)}
    settings = distillation.model_dump(mode="json", exclude=unseen)
    return facts | {"distillation": settings, "teacher": folder_files(teacher), **_software(DISTILLATION)}


def finetuning_identity(config: PipelineConfig, model: Path) -> dict[str, Any]:
    """Return the identity of a fine-tuning run, which must not change when it is resumed."""
    settings = {
        "task": config.task.model_dump(mode="json", exclude={"name", "train", "dev", "extra_dev"}),
        "finetuning": drop_unused(config.finetuning.model_dump(mode="json")),
    }
    if config.finetuning.teacher is not None:
        settings["teacher"] = folder_files(Path(config.finetuning.teacher))
    return settings | {"model": folder_files(model), "tables": task_digests(config), **_software(FINETUNING)}


def list_changes(before: Facts, now: Facts) -> str | None:
    """Describe the differences of two identities (JSON), with both values; None if they are equal."""
    old, new = dict(_flatten(drop_earlier(before))), dict(_flatten(now))
    names = sorted(name for name in {*old, *new} if old.get(name) != new.get(name))
    if not names:
        return None
    shown = []
    for name in names[:MAX_SHOWN]:
        earlier, later = (
            value[:DIGITS] if isinstance(value, str) and len(value) == 64 else str(value)  # a digest has 64 digits
            for value in (old.get(name), new.get(name))
        )
        shown.append(f"{_name(name)} ({earlier}, now {later})")
    return ", ".join(shown) + (f" and {len(names) - MAX_SHOWN} more" if len(names) > MAX_SHOWN else "")


def drop_earlier(identity: Facts) -> dict[str, Any]:
    """Return an identity without what only those by earlier versions of this package hold."""
    return {name: value for name, value in identity.items() if name not in EARLIER}


def _software(stage: Stage) -> dict[str, Any]:
    return {
        "backend": keras.backend.backend(),
        "keras": keras.__version__,
        REVISION: stage.revision,
    }


def _flatten(values: Facts, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path of keys of each value that is no dictionary, and the value."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(value, (*path, name))
        else:
            yield (*path, name), value


def _name(path: tuple[str, ...]) -> str:
    """Describe a path of keys in words."""
    kind, *rest = path
    words = {
        "records": "records, file {}",
        "model": "model, file {}",
        "initial_model": "initial model, file {}",
        "teacher": "teacher, file {}",
        "tables": "table {}",
        "vocabulary": "vocabulary",
        "keras": "Keras version",
        REVISION: "revision of the stage",
    }
    is_file = kind != "model" or "." in path[-1]  # a setting of the model has no suffix
    return words[kind].format(*rest) if kind in words and is_file else ".".join(path)


# History of the settings that were changed during a run.

Settings = Mapping[str, Any]
Span = list  # [last step with these settings, settings]


def add_change(history: Sequence[Span], step: int, before: Settings, now: Settings) -> list[Span]:
    """Return a history with the settings up to a step appended, if they change there."""
    return [*history, *([[step, dict(before)]] if dict(before) != dict(now) and step else [])]


def list_spans(history: Sequence[Span], now: Settings, names: Sequence[str], last_step: int) -> list[Span]:
    """Return the spans of steps with the same settings, in order.

    Args:
        history: output of `add_change`.
        now: the current settings.
        names: settings of interest.
        last_step: the end of the last span.
    """
    spans: list[Span] = []
    for until_step, settings in (*history, (last_step, now)):
        step, values = min(until_step, last_step), {name: settings[name] for name in names}
        if spans and spans[-1][1] == values:
            spans[-1][0] = step
        elif step > (spans[-1][0] if spans else 0):
            spans.append([step, values])
    return spans


def list_earlier(history: Sequence[Span], now: Settings, names: Sequence[str], last_step: int) -> list[Span]:
    """Return the spans with other settings than the current ones; empty if the settings were never changed."""
    spans = list_spans(history, now, names, last_step)
    return spans[:-1] if spans and spans[-1][1] == {name: now[name] for name in names} else spans

"""Print the command that comes next, as it can be copied: a line on standard error when a command has ended."""

import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_bert_flow.extras import BACKENDS
from keras_bert_flow.job_progress import is_told
from keras_bert_flow.local_paths import find_address
from keras_bert_flow.terminal import show

HIDDEN = "KBF_NEXT_STEPS"  # set to `off`, as `kbf run` does for its stages
# Minutes on a laptop, where nothing says what to train; the defaults are those of the paper.
FIRST_TRY = (
    "model.size=tiny",
    "pretraining.total_steps=1000",
    "pretraining.warmup_steps=100",
    "pretraining.batch_size=32",
)


def say_next(*command: str | Path) -> None:
    """Print a command of `kbf`."""
    if is_told() and os.environ.get(HIDDEN) != "off":
        show(f"Next: {shlex.join([*shlex.split(name_program()), *map(str, command)])}", sys.stderr)


def name_program() -> str:
    """Return how this program is called here."""
    return "kbf" if shutil.which("kbf") else f"{shlex.quote(sys.executable)} -m keras_bert_flow"


def beside(output: str | Path, name: str) -> str:
    """Return a place for the next result: in the same folder, and new."""
    if address := find_address(output):
        return f"{address.rstrip('/').rpartition('/')[0]}/{name}"
    place, number = Path(output).parent / name, 1
    while place.exists():
        number += 1
        place = Path(output).parent / f"{Path(name).stem}-{number}{Path(name).suffix}"
    return str(place)


def inside(output: str | Path, name: str) -> str:
    """Return the path of something in a result."""
    return f"{find_address(output) or Path(output)}/{name}"


def carry(
    config: Path | None = None,
    overrides: Sequence[str] | None = None,
    flags: Mapping[str, Any] | None = None,
    backend: str | None = None,
) -> list[str]:
    """Return the options that make the next command read the same settings as this one.

    Args:
        flags: setting → the value that an option of this command gave it; None where it was not given.
    """
    given = [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in _given(flags)]
    options = ["--config", str(config)] if config else []
    for override in (*(overrides or ()), *given):
        options += ["--set", override]
    return [*options, *(["--backend", backend] if backend else [])]


def carry_to_training(config: Path | None, overrides: Sequence[str] | None, flags: Mapping[str, Any]) -> list[str]:
    """Return options as `carry` does, with sizes and a backend where nothing that was given says any."""
    kept = {name: value for name, value in flags.items() if not name.startswith("corpus.")}
    settings = [*(overrides or ())]
    if config is None and not any(text.startswith(("model.", "pretraining.")) for text in settings):
        length = kept.get("records.sequence_length")
        settings += [*FIRST_TRY, *([f"model.max_positions={length}"] if length and length > 512 else [])]
    backend = None
    if config is None and "KERAS_BACKEND" not in os.environ:
        from importlib.util import find_spec

        installed = [name for name in BACKENDS if find_spec(name)]
        backend = None if installed[:1] == [BACKENDS[0]] else next(iter(installed), None)
    return carry(config, settings, kept, backend)


def ask_pretrained(model: Path, shown: str) -> list[str]:
    """Return a command that asks a model which is not fine-tuned yet.

    Args:
        model: its folder on this disk.
        shown: the same as the command is to name it.
    """
    from keras_bert_flow.json_documents import read_json_object

    architectures = read_json_object(model / "config.json").get("architectures") or [""]
    if not architectures[0].endswith(("ForMaskedLM", "ForPreTraining")) or "Electra" in architectures[0]:
        return ["predict", "--as", "features", "--model", shown, "a film"]
    settings = model / "tokenizer_config.json"
    mask = read_json_object(settings).get("mask_token") if settings.is_file() else None
    return ["predict", "--as", "fill_mask", "--model", shown, f"a {mask if isinstance(mask, str) else '[MASK]'} film"]


def ask_finetuned(model: str, dev: str) -> list[str]:
    """Return a command that asks a fine-tuned model on the table that it was measured on."""
    return ["predict", "--model", model, "--input", dev, "--output", beside("x", "predictions.jsonl")]


def find_finetuned(output: Path) -> str | None:
    """Return the path within a folder of fine-tuning of the first model in it."""
    found = sorted(output.glob("pretrained/seed-*/model/config.json"), key=lambda path: _seed(path.parents[1].name))
    return str(found[0].parent.relative_to(output)) if found else None


def _seed(name: str) -> int:
    number = name.removeprefix("seed-")
    return int(number) if number.isdigit() else 0


def _given(flags: Mapping[str, Any] | None) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in (flags or {}).items() if value is not None]

"""Look at the paths that a command is given, before it begins: on this disk, or fetched where they may be elsewhere."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from keras_bert_flow.local_paths import check_local, find_address

# What each command calls by these names may be at another place, such as s3://bucket/x.
MODELS = ("model", "teacher", "initial_model", "base")
FILES = ("input", "predictions", "minimal_pairs", "lines")
ANYWHERE = ("records", "vocab", "finetuned", "pretrained", "earlier", "source", *FILES, *MODELS)


def settle_paths(values: Mapping[str, Any], options: Mapping[str, str]) -> dict[str, Any]:
    """Return the values of a command's options, with what is elsewhere fetched to this disk.

    Records may still be on their way; see `stores.fetching`.

    Args:
        values: name of each parameter → its value.
        options: name of each parameter → the option as a user gives it.
    Raises:
        ValueError: a path is at another place and must not be, or is a folder around models and not one.
        FileNotFoundError, OSError: of `stores.fetching.fetch`.
    """
    paths = list(_find_paths(values))
    for name, path in paths:
        if name not in ANYWHERE:
            check_local(path, options[name])
    settled = dict(values)
    for name, path in paths:
        if name in ANYWHERE and find_address(path):
            from keras_bert_flow.stores.fetching import fetch

            fetched = fetch(path, wait=name != "records")
            given = settled[name]
            is_list = isinstance(given, list | tuple)
            settled[name] = [fetched if one == path else one for one in given] if is_list else fetched
        if name in MODELS:
            check_model(settled[name])
    return settled


def check_model(folder: Path) -> None:
    """Check that a folder is not one of those that hold model directories.

    Raises:
        ValueError: it is what `kbf pretrain` or `kbf finetune` made; the message names a model in it.
    """
    if (folder / "config.json").is_file():
        return
    for pattern in ("model", "pretrained/seed-*/model"):
        for inner in sorted(folder.glob(f"{pattern}/config.json")):
            raise ValueError(f"A model directory must hold config.json. Received: {folder}. Try {inner.parent}")


def _find_paths(values: Mapping[str, Any]) -> Iterator[tuple[str, Path]]:
    for name, value in values.items():
        for path in value if isinstance(value, list | tuple) else (value,):
            if isinstance(path, Path):
                yield name, path

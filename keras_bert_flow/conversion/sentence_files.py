"""Write and read the `sentence_transformers` files that define how an encoder's outputs become a text embedding."""

import json
from pathlib import Path
from typing import Any

from keras_bert_flow.conversion.directory_files import read_json, write_json
from keras_bert_flow.conversion.hf_config import MAX_NUMBER
from keras_bert_flow.terminal import abridge

MODULES = "modules.json"
TRANSFORMER = "sentence_bert_config.json"
POOLING_FOLDER, NORMALIZE_FOLDER = "1_Pooling", "2_Normalize"
# Source: sentence-transformers 5.2, models/Pooling.py. The first three are also poolings of ours.
FLAGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
SUPPORTED = ("mean", "cls", "max")


def write_sentence_files(
    folder: Path, hidden_dim: int, pooling: str, normalize: bool, max_tokens: int | None = None
) -> None:
    """Write `modules.json` and a folder for each module after the encoder.

    Args:
        max_tokens: length to which texts are truncated; default: the encoder's number of positions.
    """
    if max_tokens is not None:
        write_json(
            folder / TRANSFORMER, {"max_seq_length": max_tokens, "do_lower_case": False}
        )  # the tokenizer lowercases
    folders = ["", POOLING_FOLDER, *([NORMALIZE_FOLDER] if normalize else [])]
    types = ("Transformer", "Pooling", "Normalize")
    modules = [
        {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for index, (path, kind) in enumerate(zip(folders, types, strict=False))
    ]
    (folder / MODULES).write_text(json.dumps(modules, indent=2) + "\n", encoding="utf-8")
    for path in folders[1:]:
        (folder / path).mkdir(exist_ok=True)
    flags = {flag: mode == pooling for mode, flag in FLAGS.items()}
    config = {"word_embedding_dimension": hidden_dim, **flags, "include_prompt": True}
    write_json(folder / POOLING_FOLDER / "config.json", config)


def read_sentence_files(folder: Path) -> dict[str, Any]:
    """Return `pooling` and `normalize` of a directory; empty if it has no `modules.json`.

    Raises:
        ValueError: the directory has other modules or poolings, or a file is damaged.
    """
    path = folder / MODULES
    if not path.is_file():
        return {}
    modules = read_json(path, list)
    try:
        kinds = [module["type"].rpartition(".")[-1] for module in modules]
        folders = [module["path"] for module in modules]
        "".join(folders)  # TypeError unless all are strings
    except (AttributeError, KeyError, TypeError):
        raise ValueError(f"{path}: each module must have a `type` and a `path`. Copy or save it again.") from None
    is_known = kinds in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
    if not is_known or folders[0] != "" or not _are_names(folders[1:]):
        received = ", ".join(f"{kind} in {place!r}" for kind, place in zip(kinds, folders, strict=True))
        raise ValueError(
            f"{path}: the modules must be Transformer, in the folder itself, Pooling and perhaps Normalize. "
            f"Received: {abridge(received)}."
        )
    return {"pooling": _read_pooling(folder / folders[1] / "config.json"), "normalize": len(kinds) == 3}


def read_max_tokens(folder: Path) -> int | None:
    """Return the length to which `sentence_transformers` truncates texts; None if the directory does not say.

    Raises:
        ValueError: the value is not a number of tokens.
    """
    path = folder / TRANSFORMER
    most = read_json(path).get("max_seq_length") if path.is_file() else None
    if most is not None and (type(most) is not int or not 3 <= most < MAX_NUMBER):
        received = abridge(ascii(most))
        raise ValueError(f"{path}: `max_seq_length` must be an integer of 3 or more. Received: {received}. Correct it.")
    return most


def _are_names(folders: list[str]) -> bool:
    return all(folder not in ("", ".", "..") and not set(folder) & set("/\\\0") for folder in folders)


def _read_pooling(path: Path) -> str:
    config = read_json(path)
    flagged = [mode for mode, flag in FLAGS.items() if config.get(flag)]
    modes = [config["pooling_mode"]] if config.get("pooling_mode") else flagged
    if len(modes) != 1 or modes[0] not in SUPPORTED:
        raise ValueError(
            f"{path}: the pooling must be one of {', '.join(SUPPORTED)}. Received: {abridge(ascii(modes))}."
        )
    return modes[0]

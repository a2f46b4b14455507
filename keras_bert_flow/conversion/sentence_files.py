"""Write and read the `sentence_transformers` files that define how an encoder's outputs become a text embedding."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_bert_flow.console.terminal import abridge
from keras_bert_flow.conversion.directory_files import MAX_NUMBER, TOKENIZER_CONFIG, read_json, write_json
from keras_bert_flow.files.documents import Read, read_file

MODULES = "modules.json"
TRANSFORMER, WHOLE = "sentence_bert_config.json", "config_sentence_transformers.json"
# Files on the encoder, by the kinds of model for which old versions wrote them; the first one counts.
ENCODER_FILES = (
    TRANSFORMER,
    *(
        f"sentence_{kind}_config.json"
        for kind in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
    ),
)
INPUT_FILES = (*ENCODER_FILES, WHOLE, "1_Pooling/config.json")  # what `read_sentence_input` reads
# Fields of these that are read here, or do not change vectors.
ENCODER_FIELDS = ("max_seq_length", "do_lower_case", "transformer_task", "modality_config", "unpad_inputs")
OUTPUT_FIELD, OUTPUT = "module_output_name", "token_embeddings"  # written by sentence-transformers 6
ARGUMENTS = ("model_args", "tokenizer_args", "config_args", "model_kwargs", "processor_kwargs", "config_kwargs")
HARMLESS_ARGUMENTS = {"attn_implementation", "dtype", "low_cpu_mem_usage", "torch_dtype", "trust_remote_code"}
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
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


def read_sentence_files(folder: Path, read: Read = read_file) -> dict[str, Any]:
    """Return `pooling` and `normalize` of a directory; empty if it has no `modules.json`.

    Raises:
        ValueError: the directory has other modules or poolings, or a file is damaged.
    """
    path = folder / MODULES
    if not path.is_file():
        return {}
    modules = read_json(path, list, read)
    try:
        kinds = [module["type"].rpartition(".")[-1] for module in modules]
        folders = [module["path"] for module in modules]
        "".join(folders)  # TypeError unless all are strings
    except (AttributeError, KeyError, TypeError):
        raise ValueError(f"{path}: each module must have a `type` and a `path`. Copy or save it again.") from None
    is_known = kinds in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"])
    are_names = all(name not in ("", ".", "..") and not set(name) & set("/\\\0") for name in folders[1:])
    if not is_known or folders[0] != "" or not are_names:
        received = ", ".join(f"{kind} in {place!r}" for kind, place in zip(kinds, folders, strict=True))
        raise ValueError(
            f"{path}: the modules must be Transformer, in the folder itself, Pooling and perhaps Normalize. "
            f"Received: {abridge(received)}."
        )
    return {"pooling": _read_pooling(folder / folders[1] / "config.json", read), "normalize": len(kinds) == 3}


@dataclass(frozen=True)
class SentenceInput:
    """What `sentence_transformers` does to texts and vectors outside of the model.

    Attributes:
        max_tokens: length to which texts are truncated; None if the directory does not say.
        prompt: what is put before every text.
        has_prompt_in_pooling: whether the tokens of the prompt are pooled with the others.
        lowers: texts are lower-cased before the tokenizer gets them.
        dimension: vectors are cut to this many numbers; None: they are whole.
        similarity: how vectors are compared: cosine, dot, euclidean or manhattan.
    """

    max_tokens: int | None = None
    prompt: str = ""
    has_prompt_in_pooling: bool = True
    lowers: bool = False
    dimension: int | None = None
    similarity: str = "cosine"


def read_sentence_input(folder: Path, read: Read = read_file) -> SentenceInput:
    """Return what the files of `sentence_transformers` say about texts and vectors; the default if there are none.

    Raises:
        ValueError: a file is damaged, or a field that changes vectors is not implemented.
    Source: sentence-transformers 5.2 and 6.2, `Transformer.load_config` and `SentenceTransformer.encode`.
    """
    encoder, path = _read_encoder(folder, read)
    lowers = encoder.get("do_lower_case") or False
    strange = [name for name, value in encoder.items() if not _is_harmless(name, value)]
    if strange or type(lowers) is not bool:
        name = strange[0] if strange else "do_lower_case"
        raise ValueError(
            f"{path}: `{name}` is not implemented. Received: {abridge(ascii(encoder[name]))}. Take it out if the "
            "vectors do not depend on it."
        )
    whole = folder / WHOLE
    config = read_json(whole, read=read) if whole.is_file() else {}
    dimension, similarity = config.get("truncate_dim"), config.get("similarity_fn_name") or "cosine"
    if dimension is not None and (type(dimension) is not int or dimension < 1):
        raise ValueError(f"{whole}: `truncate_dim` must be 1 or more. Received: {abridge(ascii(dimension))}.")
    if similarity not in SIMILARITIES:
        raise ValueError(
            f"{whole}: `similarity_fn_name` must be one of {', '.join(SIMILARITIES)}. Received: "
            f"{abridge(ascii(similarity))}."
        )
    pooling = folder / POOLING_FOLDER / "config.json"
    is_pooled = (read_json(pooling, read=read) if pooling.is_file() else {}).get("include_prompt", True) is not False
    return SentenceInput(
        read_max_tokens(folder, read), _find_prompt(config, whole), is_pooled, lowers, dimension, similarity
    )


def _is_harmless(name: str, value: Any) -> bool:
    """Return whether a field of the encoder is read here, or does not change vectors."""
    if name in ENCODER_FIELDS or value in (None, {}, []) or (name, value) == (OUTPUT_FIELD, OUTPUT):
        return True
    return name in ARGUMENTS and isinstance(value, dict) and value.keys() <= HARMLESS_ARGUMENTS


def read_max_tokens(folder: Path, read: Read = read_file) -> int | None:
    """Return the length to which `sentence_transformers` truncates texts; None if the directory does not say.

    It is `max_seq_length` of the first of `ENCODER_FILES`, or else the length that the tokenizer has.

    Raises:
        ValueError: the value is not a number of tokens.
    """
    encoder, path = _read_encoder(folder, read)
    name = "max_seq_length"
    if encoder.get(name) is None:
        path, name = folder / TOKENIZER_CONFIG, "model_max_length"
        encoder = read_json(path, read=read) if path.is_file() else {}
        if isinstance(most := encoder.get(name), int | float) and most >= MAX_NUMBER:  # 1e30 stands for no limit
            return None
    most = encoder.get(name)
    if most is not None and (type(most) is not int or not 3 <= most < MAX_NUMBER):
        received = abridge(ascii(most))
        raise ValueError(f"{path}: `{name}` must be an integer of 3 or more. Received: {received}. Correct it.")
    return most


def _read_encoder(folder: Path, read: Read) -> tuple[dict[str, Any], Path]:
    """Return the first of the files on the encoder that is not empty, and its path."""
    for path in (folder / name for name in ENCODER_FILES):
        if path.is_file() and (content := read_json(path, read=read)):
            return content, path
    return {}, folder / TRANSFORMER


def _find_prompt(config: dict[str, Any], path: Path) -> str:
    """Return the prompt that is put before every text, the default one; empty if there is none."""
    name, prompts = config.get("default_prompt_name"), config.get("prompts") or {}
    prompt = prompts.get(name) if isinstance(prompts, dict) and isinstance(name, str) else ""
    if name is not None and not isinstance(prompt, str):
        raise ValueError(
            f"{path}: `default_prompt_name` must be one of `prompts`. Received: {abridge(ascii(name))}. Correct it."
        )
    return prompt or ""


def _read_pooling(path: Path, read: Read) -> str:
    config = read_json(path, read=read)
    flagged = [mode for mode, flag in FLAGS.items() if config.get(flag)]
    modes = [config["pooling_mode"]] if config.get("pooling_mode") else flagged
    if len(modes) != 1 or modes[0] not in SUPPORTED:
        raise ValueError(
            f"{path}: the pooling must be one of {', '.join(SUPPORTED)}. Received: {abridge(ascii(modes))}."
        )
    return modes[0]

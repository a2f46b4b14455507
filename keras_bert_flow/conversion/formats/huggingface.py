"""Hugging Face model directories: `config.json`, safetensors and tokenizer files."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_flow.conversion.codecs.safetensors_file import FILE, INDEX, PICKLE, write_tensors
from keras_bert_flow.conversion.directory import ModelDirectory
from keras_bert_flow.conversion.directory_files import name_own_kernel, write_json
from keras_bert_flow.conversion.formats.format import Checkpoint, Format, Tensors
from keras_bert_flow.conversion.sentence_files import ENCODER_FILES, MODULES, WHOLE
from keras_bert_flow.conversion.tables.table import find_root, find_table_of
from keras_bert_flow.text.tokenizers.files import encode_fast_tokenizer, read_word_piece
from keras_bert_flow.text.tokenizers.settings import ADDED_TOKENS, FAST_TOKENIZER, SPECIAL_MAP
from keras_bert_flow.text.tokenizers.wordpiece import SETTINGS
from keras_bert_flow.text.vocabulary import VOCABULARY_FILE

CONFIG = "config.json"
TOKENIZER = (VOCABULARY_FILE, FAST_TOKENIZER, SETTINGS, SPECIAL_MAP, ADDED_TOKENS)
COMPANIONS = ("task.json", MODULES, *ENCODER_FILES, WHOLE, "1_Pooling/config.json", "README.md")


class HuggingFace(Format):
    """Model directories as written by `transformers` and this package."""

    title = "Hugging Face"
    dtypes = ("float32", "bfloat16", "float16")

    def recognise(self, path: Path) -> bool:
        return (path / CONFIG).is_file() and any((path / name).is_file() for name in (FILE, INDEX, PICKLE))

    def read(self, path: Path, cased: bool | None) -> Checkpoint:
        directory = ModelDirectory(path)
        tensors = directory.tensors
        return Checkpoint(
            directory.config,
            Tensors.select(tensors, {name: name for name in tensors}),
            {name: path / name for name in TOKENIZER if (path / name).is_file()},
            {name: path / name for name in COMPANIONS if (path / name).is_file()},
            directory.remarks,
        )

    def check(self, checkpoint: Checkpoint) -> None:
        """Accept every model: whatever was read can be written."""

    def write(self, checkpoint: Checkpoint, folder: Path, dtype: str) -> tuple[str, ...]:
        config = dict(checkpoint.config)
        write_tensors(folder / FILE, name_tensors(config, checkpoint), dtype)
        for name in ("dtype", "torch_dtype"):
            config |= {name: dtype} if name in config or name == "dtype" else {}
        write_json(folder / CONFIG, config)
        tokenizer = dict(checkpoint.tokenizer)
        is_missing = VOCABULARY_FILE in tokenizer and FAST_TOKENIZER not in tokenizer
        if is_missing:
            read = read_word_piece(checkpoint.find_vocabulary())
            tokenizer[FAST_TOKENIZER] = encode_fast_tokenizer(read.vocabulary, read.cased, read.rules)
        copy_files(tokenizer | dict(checkpoint.companions), folder)
        return (f"{FAST_TOKENIZER} new, of {VOCABULARY_FILE}",) if is_missing else ()


def name_tensors(config: dict[str, Any], checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Return the tensors by their names in `transformers`: with a prefix if the model has a head."""
    table = find_table_of(config, CONFIG)
    architecture = (config.get("architectures") or [""])[0].removeprefix(table.class_prefix)
    roots = table.list_roots(architecture)
    prefix = "" if architecture == "Model" else table.prefix
    own_kernel = name_own_kernel(config, table)
    return {
        (prefix if find_root(name) in roots else "") + name: value[..., None] if name == own_kernel else value
        for name, value in checkpoint.tensors.items()
    }


def copy_files(files: Mapping[str, Path | bytes], folder: Path) -> None:
    """Write files, given as paths or bytes by name, to a folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            shutil.copyfile(content, folder / name)

"""Hugging Face model directories, and LoRA adapters in `peft`'s format, read merged into their base models.

A model directory has `config.json`, safetensors and tokenizer files.
"""

import re
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_flow.console.terminal import abridge
from keras_bert_flow.conversion.adapters import (
    TASK_TYPES,
    AdaptedTensors,
    find_base,
    is_adapter,
    read_adapter_config,
)
from keras_bert_flow.conversion.codecs.safetensors_file import FILE, INDEX, PICKLE, write_tensors
from keras_bert_flow.conversion.directory import ModelDirectory
from keras_bert_flow.conversion.directory_files import make_label_fields, name_own_kernel, number_labels, write_json
from keras_bert_flow.conversion.formats.format import Checkpoint, Format, Tensors
from keras_bert_flow.conversion.model_card import describe_merged
from keras_bert_flow.conversion.sentence_files import ENCODER_FILES, MODULES, WHOLE
from keras_bert_flow.conversion.tables.table import FamilyTable, find_root, find_table_of
from keras_bert_flow.models.saved_as import CLASSIFIER_HEAD
from keras_bert_flow.text.tokenizers.files import encode_fast_tokenizer, read_word_piece
from keras_bert_flow.text.tokenizers.settings import ADDED_TOKENS, FAST_TOKENIZER, SPECIAL_MAP
from keras_bert_flow.text.tokenizers.wordpiece import SETTINGS
from keras_bert_flow.text.vocabulary import VOCABULARY_FILE

CONFIG = "config.json"
TOKENIZER = (VOCABULARY_FILE, FAST_TOKENIZER, SETTINGS, SPECIAL_MAP, ADDED_TOKENS)
CARD = "README.md"
COMPANIONS = ("task.json", MODULES, *ENCODER_FILES, WHOLE, "1_Pooling/config.json", CARD)
BARE = "Model"  # architecture without a head


class HuggingFace(Format):
    """Model directories as written by `transformers` and this package."""

    title = "Hugging Face"
    weights = (FILE, INDEX, PICKLE)
    dtypes = ("float32", "bfloat16", "float16")

    def read(self, path: Path, cased: bool | None) -> Checkpoint:
        config, tensors, remarks = ModelDirectory(path).opened
        return Checkpoint(
            config,
            Tensors.select(tensors, {name: name for name in tensors}),
            {name: path / name for name in TOKENIZER if (path / name).is_file()},
            {name: path / name for name in COMPANIONS if (path / name).is_file()},
            remarks,
        )

    def write(self, checkpoint: Checkpoint, folder: Path, dtype: str) -> tuple[str, ...]:
        config = dict(checkpoint.config)
        write_tensors(folder / FILE, _name_tensors(config, checkpoint), dtype)
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


class Adapter(Format):
    """LoRA adapters; this format is only read, since training writes adapters."""

    title = "an adapter"

    def recognise(self, path: Path) -> bool:
        return is_adapter(path)

    def read(self, path: Path, cased: bool | None, told: str | Path | None = None) -> Checkpoint:
        """Read an adapter merged into its base model.

        Args:
            told: the base model, if it is not the one that `adapter_config.json` names.
        """
        tensors: Any  # `AdaptedTensors`, as the folder is an adapter's
        base, settings = find_base(path, told), read_adapter_config(path)
        model, directory = HuggingFace().read(base, cased), ModelDirectory(path, base)
        config, tensors, _ = directory.opened
        table, has_config = find_table_of(config, str(base / CONFIG)), (path / CONFIG).is_file()
        if not has_config:
            config = _describe_head(config, settings.get("task_type"), table, tensors)
        is_same = config.get("architectures") == model.config.get("architectures")
        encoder = table.list_roots()
        left_out = [] if is_same else [name for name in model.tensors if find_root(name) not in encoder]
        kept = [name for name in tensors if name in tensors.whole or name in model.tensors and name not in left_out]
        companions = dict(model.companions) if is_same and not has_config else {}
        companions |= {name: path / name for name in COMPANIONS if (path / name).is_file()}
        companions.pop(CARD, None)
        card = (path / CARD).read_text(encoding="utf-8", errors="replace") if (path / CARD).is_file() else ""
        merged_card = describe_merged(card)
        remarks = _describe_merge(settings, base, table, tensors)
        if heads := {find_root(name) for name in left_out if name not in tensors.whole}:
            remarks.append(f"{_join(heads)} left out, of the head of the base")
        if card and merged_card is None:
            remarks.append(f"{CARD} left out, which is of the adapter alone")
        tokenizer = {name: path / name for name in TOKENIZER if (path / name).is_file()}
        return Checkpoint(
            config,
            Tensors.select(tensors, {name: name for name in kept}),
            tokenizer if {VOCABULARY_FILE, FAST_TOKENIZER} & tokenizer.keys() else model.tokenizer,
            companions | ({CARD: merged_card.encode()} if merged_card else {}),
            (*remarks, *model.remarks),
        )

    def check(self, checkpoint: Checkpoint) -> None:
        raise ValueError(
            "A format to write must hold a whole model. Received: adapter. `finetuning.lora_output: adapter` makes one."
        )

    def write(self, checkpoint: Checkpoint, folder: Path, dtype: str) -> tuple[str, ...]:
        self.check(checkpoint)
        return ()


def copy_files(files: Mapping[str, Path | bytes], folder: Path) -> None:
    """Write files, given as paths or bytes by name, to a folder."""
    for name, content in files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        if isinstance(content, bytes):
            (folder / name).write_bytes(content)
        else:
            shutil.copyfile(content, folder / name)


def _name_tensors(config: dict[str, Any], checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Return the tensors by their names in `transformers`: with a prefix if the model has a head."""
    table = find_table_of(config, CONFIG)
    architecture = (config.get("architectures") or [""])[0].removeprefix(table.class_prefix)
    roots = table.list_roots(architecture)
    prefix = "" if architecture == BARE else table.prefix
    own_kernel = name_own_kernel(config, table)
    return {
        (prefix if find_root(name) in roots else "") + name: value[..., None] if name == own_kernel else value
        for name, value in checkpoint.tensors.items()
    }


def _describe_head(
    config: dict[str, Any], task_type: str | None, table: FamilyTable, tensors: AdaptedTensors
) -> dict[str, Any]:
    """Return a `config.json` for an adapter without one: its base model's, with the head of the adapter."""
    architectures = {theirs: ours for ours, theirs in TASK_TYPES.items()}
    heads = {find_root(name) for name in tensors.whole} - table.list_roots()
    if task_type not in architectures or not (heads or architectures[task_type] == BARE):
        return config
    described = config | {"architectures": [table.class_prefix + architectures[task_type]]}
    kernel = f"{table.name_heads(CLASSIFIER_HEAD, architectures[task_type])['classifier']}.weight"
    count = tensors.shapes[kernel][0] if kernel in tensors.whole else None
    if count is None or len(config.get("id2label") or ()) == count:
        return described
    return described | make_label_fields(number_labels(count))


def _describe_merge(settings: Mapping[str, Any], base: Path, table: FamilyTable, tensors: AdaptedTensors) -> list[str]:
    """Return remarks on what was merged, one clause each."""
    block = re.compile(re.escape(table.block_name).replace(r"\{\}", r"\d+"))
    layers = {block.sub("", name).removesuffix(".weight") for name in tensors.merged}
    rank, alpha = settings["r"], settings["lora_alpha"]
    how = f"{len(tensors.merged)} weights, rank {rank}, scaling {alpha / rank:g}"
    remarks = [f"merged into {base}: {_join(layers)}; {how}"]
    if tensors.whole:
        remarks.append(f"{_join(name.rpartition('.')[0] for name in tensors.whole)} taken whole from the adapter")
    return remarks


def _join(names: Iterable[str]) -> str:
    return abridge(", ".join(sorted({*names})))

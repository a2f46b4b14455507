"""Checkpoints in the layout of google-research/bert: names, `bert_config.json`, a tensor bundle, `vocab.txt`.

Reading and writing them does not need TensorFlow.
"""

import re
from pathlib import Path
from typing import Any

from keras_bert_flow.console.terminal import abridge
from keras_bert_flow.conversion.adapters import check_leftovers
from keras_bert_flow.conversion.codecs.tensor_bundle import INDEX_SUFFIX, open_bundle, write_bundle
from keras_bert_flow.conversion.directory import check_sizes
from keras_bert_flow.conversion.directory_files import (
    check_vocabulary,
    describe_vocabulary,
    read_hf_config,
    read_json,
    read_shape,
    write_json,
)
from keras_bert_flow.conversion.formats.format import Checkpoint, Format, Tensors
from keras_bert_flow.conversion.formats.huggingface import copy_files
from keras_bert_flow.conversion.tables.table import find_table
from keras_bert_flow.text.tokenizers.files import encode_fast_tokenizer, read_word_piece
from keras_bert_flow.text.tokenizers.settings import FAST_TOKENIZER

# BERT's names in the checkpoints of google-research/bert.
#
# Source: google-research/bert, modeling.py, run_pretraining.py, run_classifier.py and run_squad.py.

PREFIX = "bert/"
# Hugging Face's name → google-research's, where no rule derives it. None of these kernels is transposed.
_HEADS = {
    "cls.predictions.bias": "cls/predictions/output_bias",
    "cls.seq_relationship.weight": "cls/seq_relationship/output_weights",
    "cls.seq_relationship.bias": "cls/seq_relationship/output_bias",
    "classifier.weight": "output_weights",
    "classifier.bias": "output_bias",
    "qa_outputs.weight": "cls/squad/output_weights",
    "qa_outputs.bias": "cls/squad/output_bias",
}
_THEIR_HEADS = {theirs: ours for ours, theirs in _HEADS.items()}
_TABLES = ("word_embeddings", "position_embeddings", "token_type_embeddings")
_NORM = {"weight": "gamma", "bias": "beta"}
_THEIR_NORM = {theirs: ours for ours, theirs in _NORM.items()}
# Head trained by google-research's programs → class of `transformers`; the first one present counts.
ARCHITECTURES = {
    "cls.seq_relationship.weight": "BertForPreTraining",
    "cls.predictions.bias": "BertForMaskedLM",
    "classifier.weight": "BertForSequenceClassification",
    "qa_outputs.weight": "BertForQuestionAnswering",
}
# What a training program stores besides the weights: the step, and the moments of Adam, LAMB and others.
_BESIDE = re.compile(
    r".*/(adam|lamb)_[mv](_\d+)?|.*/(Adam|Momentum)(_\d+)?|(beta[12]_power|loss_scale|good_steps|global_step).*"
)


def name_there(name: str) -> tuple[str, bool]:
    """Return google-research's name for a Hugging Face tensor, and whether it is transposed there.

    Args:
        name: without the prefix `bert.`.
    """
    if name in _HEADS:
        return _HEADS[name], False
    layer, _, variable = name.rpartition(".")
    place = re.sub(r"\.layer\.(\d+)\.", r".layer_\1.", f".{layer}.").strip(".").replace(".", "/")
    place = place if place.startswith("cls/") else PREFIX + place
    last = place.rpartition("/")[2]
    if last in _TABLES:
        return place, False
    if last == "LayerNorm":
        return f"{place}/{_NORM[variable]}", False
    return (f"{place}/kernel", True) if variable == "weight" else (f"{place}/{variable}", False)


def name_here(name: str) -> tuple[str, bool] | None:
    """Return Hugging Face's name for a google-research tensor, without `bert.`, and whether it is transposed there.

    Returns None for what is not a weight: optimizer moments and the step.
    """
    if name in _THEIR_HEADS:
        return _THEIR_HEADS[name], False
    if _BESIDE.fullmatch(name):
        return None
    place, _, variable = name.removeprefix(PREFIX).rpartition("/")
    layer = re.sub(r"/layer_(\d+)/", r"/layer/\1/", f"/{place}/").strip("/").replace("/", ".")
    if variable in _TABLES:
        return f"{layer}.{variable}.weight", False
    if variable in _THEIR_NORM:
        return f"{layer}.{_THEIR_NORM[variable]}", False
    return (f"{layer}.weight", True) if variable == "kernel" else (f"{layer}.{variable}", False)


CONFIG, NAME = "bert_config.json", "bert_model.ckpt"
VOCABULARY, SETTINGS = "vocab.txt", "tokenizer_config.json"
FAMILY = "bert"


class TensorFlow(Format):
    """Checkpoints of google-research/bert."""

    title = "TensorFlow"

    def recognise(self, path: Path) -> bool:
        return (path / CONFIG).is_file() or Path(f"{path}{INDEX_SUFFIX}").is_file()

    def read(self, path: Path, cased: bool | None) -> Checkpoint:
        folder = path if path.is_dir() else path.parent
        config = read_json(folder / CONFIG)
        table, source = find_table(FAMILY), str(folder / CONFIG)
        config = {"model_type": FAMILY} | dict(table.written) | config
        shape = read_shape(config, source)
        bundle = open_bundle(_find_prefix(path))
        here = {name: found for name in bundle if bundle.is_float(name) and (found := name_here(name))}
        names = [ours for ours, _ in here.values()]
        if len({*names}) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"{bundle.path}: each tensor must appear once. Received: {abridge(twice)}, twice.")
        tensors = Tensors(
            {ours: _reader(bundle, name, is_transposed) for name, (ours, is_transposed) in here.items()},
            {
                ours: bundle.shapes[name][::-1] if is_transposed else bundle.shapes[name]
                for name, (ours, is_transposed) in here.items()
            },
            bundle.path,
        )
        check_sizes(shape, table, tensors)
        check_leftovers(shape, table, tensors)
        if "architectures" not in config:
            classes = [title for name, title in ARCHITECTURES.items() if name in tensors]
            config = {"architectures": [*classes, "BertModel"][:1]} | config
        dropped = len(bundle) - len(tensors)
        remarks = [f"{dropped} tensors of the training left out, no weights"] if dropped else []
        return Checkpoint(config, tensors, _find_tokenizer(folder, config, cased), remarks=tuple(remarks))

    def check(self, checkpoint: Checkpoint) -> None:
        family = checkpoint.config["model_type"]
        if family != FAMILY:
            raise ValueError(f"A checkpoint of google-research/bert must be of a BERT. Received: {family}.")
        untied = [name for name in checkpoint.tensors if name.startswith("cls.predictions.decoder.")]
        if untied:
            raise ValueError(
                "A checkpoint of google-research/bert must have one table for tokens and predictions. Received: "
                f"{untied[0]}, another than that of the embeddings. Leave it out with --tied."
            )
        if VOCABULARY not in checkpoint.tokenizer:
            raise ValueError("A checkpoint of google-research/bert must have a vocab.txt. Received: none beside it.")
        if rules := read_word_piece(checkpoint.find_vocabulary()).rules.describe():
            raise ValueError(
                "A checkpoint of google-research/bert must have its tokenizer. Received: "
                f"{', '.join(rules)}, which it lacks. Choose another format."
            )

    def write(self, checkpoint: Checkpoint, folder: Path, dtype: str) -> tuple[str, ...]:
        tensors = {}
        for name, value in checkpoint.tensors.items():
            there, is_transposed = name_there(name)
            tensors[there] = (value.T if is_transposed else value).astype(dtype, copy=False)
        write_bundle(folder / NAME, tensors)
        write_json(folder / CONFIG, dict(checkpoint.config))
        kept = {name: file for name, file in checkpoint.tokenizer.items() if name in (VOCABULARY, SETTINGS)}
        copy_files(kept, folder)
        left = [name for name in (*checkpoint.tokenizer, *checkpoint.companions) if name not in kept]
        return (f"{', '.join(left)} left out",) if left else ()


def _find_prefix(path: Path) -> Path:
    """Return the checkpoint prefix, as given or found in a folder; ValueError unless there is exactly one."""
    if not path.is_dir():
        return path
    found = sorted(path.glob(f"*{INDEX_SUFFIX}"))
    if len(found) != 1:
        names = ", ".join(file.name for file in found[:3]) or "none"
        raise ValueError(
            f"A folder must hold one checkpoint. Received: {path}, with {names}. Give the path of one without "
            f"{INDEX_SUFFIX}."
        )
    return Path(str(found[0]).removesuffix(INDEX_SUFFIX))


def _find_tokenizer(folder: Path, config: dict[str, Any], cased: bool | None) -> dict[str, Path | bytes]:
    if not (folder / VOCABULARY).is_file():
        raise FileNotFoundError(f"A checkpoint must come with its {VOCABULARY}. Received: {folder}, without it.")
    settings = read_hf_config(config, str(folder / CONFIG))
    check_vocabulary(folder / VOCABULARY, settings["vocabulary_size"])
    if cased is None and not (folder / SETTINGS).is_file():
        raise ValueError(
            f"It must be known whether a vocabulary keeps case. Received: {folder}, which does not say. Give --cased "
            "or --uncased."
        )
    tokenizer = read_word_piece(folder / VOCABULARY, cased)
    is_said = cased is None
    return {
        VOCABULARY: folder / VOCABULARY,
        SETTINGS: folder / SETTINGS if is_said else describe_vocabulary(tokenizer, settings["max_positions"]),
        FAST_TOKENIZER: encode_fast_tokenizer(tokenizer.vocabulary, tokenizer.cased, tokenizer.rules),
    }


def _reader(bundle, name: str, is_transposed: bool):
    return lambda: bundle[name].T if is_transposed else bundle[name]

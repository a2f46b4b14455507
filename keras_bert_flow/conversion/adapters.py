"""Read and write LoRA adapters in peft's format: low-rank matrices for the projections of a separate base model.

Source of the layout: peft 0.21, tuners/lora/config.py and utils/save_and_load.py.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from keras_bert_flow.console.terminal import abridge
from keras_bert_flow.conversion.codecs.safetensors_file import (
    FILE,
    FLOATS,
    INDEX,
    STORABLE,
    StoredTensors,
    TensorMapping,
    open_tensors,
)
from keras_bert_flow.conversion.directory_files import TIED_FIELD, name_own_kernel, read_json
from keras_bert_flow.conversion.tables.table import FamilyTable, find_root
from keras_bert_flow.files.paths import find_address
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import find_family
from keras_bert_flow.models.saved_as import (
    HEADS,
    MASKED_LM_EXTENSION,
    MASKED_LM_HEAD,
    MASKED_LM_TABLE,
    MASKED_LM_TRANSFORM,
    OUTPUT_BIASES,
)
from keras_bert_flow.results.publishing import verify
from keras_bert_flow.stores.fetching import fetch
from keras_bert_flow.stores.hub import is_of_hub
from keras_bert_flow.text.tokenizers.files import find_tokenizer_file

# Match the tensors that a model directory stores with those of its family, without Keras.
#
# Names in other spellings and tied tensors are resolved as `transformers` 5 does in `PreTrainedModel.tie_weights`. What
# is left over is refused or listed, never skipped silently.

# Buffers that old versions of `transformers` stored with the weights
BUFFERS = {"embeddings.position_ids", "embeddings.token_type_ids"}
SHOWN = 3  # names in a message


@dataclass(frozen=True)
class Resolved:
    """The tensors of a model directory by their current names.

    Attributes:
        tensors: the floating-point tensors, without copies.
        tied: what the tensors say about the masked-LM head; None if nothing.
        remarks: what was renamed or left out, one clause each.
    """

    tensors: StoredTensors
    tied: bool | None
    remarks: tuple[str, ...]


def resolve_names(config: Mapping[str, Any], table: FamilyTable, stored: StoredTensors) -> Resolved:
    """Give tensors their current names, and find tied ones under whichever name they are stored.

    Args:
        stored: all tensors of the directory, of any dtype, by the names in its files.
    Raises:
        ValueError: two tensors get the same name, or a weight is not of floating-point numbers.
    """
    names = {name: table.normalise_name(name) for name in stored}
    unwrapped = {name: table.unwrap_name(name) for name in stored}
    remarks = []
    if prefixes := {name.removesuffix(rest) for name, rest in unwrapped.items()} - {"", table.prefix}:
        remarks.append(f"{', '.join(sorted(prefixes))} left out of the names of tensors")
    if renamed := sum(names[name] != rest for name, rest in unwrapped.items()):
        remarks.append(f"{renamed} tensors renamed from {'older names' if table.renamed else 'gamma and beta'}")
    here = stored.rename(table.normalise_name)
    numberless = check_dtypes(here, table)
    weights = here.select({name: name for name in here if name not in numberless})
    sources, tied, tied_remarks = _tie(config, table, weights)
    remarks += tied_remarks
    remarks += [f"{name} left out, no weights" for name, new in names.items() if new in numberless]
    weights = weights.select(sources)
    own_kernel = name_own_kernel(config, table)
    return Resolved(weights.squeeze(own_kernel) if own_kernel else weights, tied, tuple(remarks))


def check_dtypes(tensors: StoredTensors, table: FamilyTable) -> set[str]:
    """Return the tensors that are no weights, such as counters; ValueError if a weight is quantised."""
    others = {name: dtype for name, dtype in tensors.dtypes.items() if dtype not in FLOATS}
    roots, heads = table.list_roots(), list_head_tensors(table)
    for name, dtype in others.items():
        if name not in BUFFERS and (find_root(name) in roots or name in heads):
            raise ValueError(
                f"{tensors.path}: weights must be of floating-point numbers, {', '.join(FLOATS)}. Received: "
                f"`{abridge(name)}` of {dtype}. Save the model in bfloat16 before it is quantised, for example with "
                "`model.dequantize().save_pretrained(NEW)` of transformers."
            )
    return {*others}


def _tie(
    config: Mapping[str, Any], table: FamilyTable, stored: StoredTensors
) -> tuple[dict[str, str], bool | None, list[str]]:
    """Return name → stored name with the masked-LM head resolved, whether the head is tied, and remarks."""
    sources = {name: name for name in stored}
    if config.get(TIED_FIELD) is False:
        return sources, None, []
    embeddings = f"{table.embeddings['token_embedding'].name}.weight"
    head, own = (table.name_heads(names, "")["mlm"] for names in (MASKED_LM_HEAD, MASKED_LM_TABLE))
    rows, own_bias, bias = f"{own}.weight", f"{own}.bias", f"{head}.bias"
    tied, remarks = None, []
    if rows in stored and embeddings not in stored:
        sources |= {embeddings: sources.pop(rows)}
        remarks.append(f"{embeddings} read from {rows}, to which it is tied")
    elif rows in stored and _are_equal(stored, rows, embeddings):
        del sources[rows]
        remarks.append(f"{rows} left out, a copy of {embeddings}")
    elif rows in stored:
        tied = False
        remarks.append(f"{rows} kept, as it differs from {embeddings}: the head is not tied")
    if own_bias != bias and own_bias in stored and tied is None:
        del sources[own_bias]
        if bias in stored and _are_equal(stored, bias, own_bias):
            remarks.append(f"{own_bias} left out, a copy of {bias}")
        else:  # the layer `decoder` computes the logits
            sources[bias] = own_bias
            remarks.append(f"{bias} read from {own_bias}")
    return sources, tied, remarks


def _are_equal(tensors: TensorMapping, one: str, other: str) -> bool:
    return tensors.shapes[one] == tensors.shapes[other] and np.array_equal(tensors[one], tensors[other])


def list_head_tensors(table: FamilyTable) -> set[str]:
    """Return the names of all tensors that the poolers and heads of a family may have."""
    layers = {tensors.name for tensors in table.pooler.values()}
    for architecture in ("", *table.heads):
        layers.add(table.name_pooler(architecture))
        for head in HEADS:
            layers |= {*table.name_heads(head, architecture).values()}
    return {f"{layer}.{part}" for layer in layers - {""} for part in ("weight", "bias")}


def check_leftovers(shape: EncoderShape, table: FamilyTable, tensors: TensorMapping) -> None:
    """Raise ValueError if the encoder has a tensor that `config.json` does not account for, or a head half a layer.

    Call this after `check_sizes`: a damaged `config.json` may claim a billion layers.
    """
    roots, heads = table.list_roots(), list_head_tensors(table)
    known = {name for name, _ in table.list_sizes(shape)} | heads | BUFFERS | {*table.unread}
    extra = sorted(name for name in tensors if name not in known and find_root(name) in roots)
    if extra:
        number = re.compile(re.escape(table.block_name).replace(r"\{\}", r"(\d+)"))
        blocks = [int(found[1]) for found in map(number.match, extra) if found]
        field = next(setting.theirs for setting in table.settings if setting.ours == "num_layers")
        is_deeper = bool(blocks) and min(blocks) >= shape.num_blocks == shape.num_layers
        remedy = (
            f"Set {field} to {max(blocks) + 1} if it has so many; `kbf convert --layers` then makes a smaller model."
            if is_deeper
            else "It computes something else than this package does."
        )
        raise ValueError(
            f"{tensors.path}: config.json must describe every tensor of the encoder. Received: {name_some(extra)}, "
            f"which a {find_family(table.family).title} of {shape.num_layers} layers does not have. {remedy}"
        )
    without_kernel, without_bias = (
        {name for architecture in ("", *table.heads) for name in table.name_heads(layers, architecture).values()}
        for layers in ({layer: layer for layer in OUTPUT_BIASES}, MASKED_LM_TABLE | MASKED_LM_EXTENSION)
    )
    transform = zip(MASKED_LM_TRANSFORM, (shape.head_bias, shape.norm_bias), strict=True)
    without_bias |= {*table.name_heads({layer: layer for layer, has_bias in transform if not has_bias}, "").values()}
    for name in heads & tensors.keys():
        layer, _, part = name.rpartition(".")
        other = f"{layer}.{'bias' if part == 'weight' else 'weight'}"
        if other not in tensors and layer not in (without_bias if part == "weight" else without_kernel):
            raise ValueError(
                f"{tensors.path}: a layer must be whole. Received: `{name}` without `{other}`. Copy or save it again."
            )


def list_unread(table: FamilyTable, tensors: TensorMapping) -> list[str]:
    """Return the tensors of the directory that belong neither to the encoder nor to a head that is known here."""
    known, roots = list_head_tensors(table), table.list_roots()
    return sorted(name for name in tensors if name not in known and find_root(name) not in roots)


def name_some(names: Iterable[str]) -> str:
    """Return the first names of a list, and how many more there are."""
    first = [*names]
    more = len(first) - SHOWN
    return abridge(", ".join(f"`{name}`" for name in first[:SHOWN])) + (f" and {more} more" if more > 0 else "")


ADAPTER_CONFIG, ADAPTER_FILE = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # of every tensor name
FIRST, SECOND = ".lora_A.weight", ".lora_B.weight"  # (rank, inputs) and (outputs, rank)
BASE = "base_model_name_or_path"
_CACHED = "models--"
TASK_TYPES = {  # architecture → peft's task type
    "ForSequenceClassification": "SEQ_CLS",
    "ForTokenClassification": "TOKEN_CLS",
    "ForQuestionAnswering": "QUESTION_ANS",
    "Model": "FEATURE_EXTRACTION",
}
# Fields of the rank and of alpha → those of modules by name that have others.
PATTERNS = {"rank_pattern": "r", "alpha_pattern": "lora_alpha"}
# Fields that change the meaning of the matrices → the values accepted here.
_PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "use_dora": (False, None),
    "use_rslora": (False, None),
    "fan_in_fan_out": (False, None),
    "lora_bias": (False, None),
    # The others, such as pissa and olora, also change the weights of the base when peft loads the adapter.
    "init_lora_weights": (True, False, None, "gaussian", "orthogonal"),
}
# Fields that do not change what the matrices mean. Any other field, also of a later peft, must be off.
_FREE = {
    BASE,
    "revision",
    "task_type",
    "auto_mapping",
    "peft_version",
    "inference_mode",
    "r",
    "lora_alpha",
    *PATTERNS,
    "lora_dropout",
    "target_modules",
    "exclude_modules",
    "modules_to_save",
    "layers_to_transform",
    "layers_pattern",
    "megatron_core",
    "qalora_group_size",
}


def is_adapter(folder: Path) -> bool:
    """Return whether a folder holds an adapter rather than a whole model."""
    return (Path(folder) / ADAPTER_CONFIG).is_file() and not _is_whole(Path(folder))


def is_bare_adapter(folder: str | Path) -> bool:
    """Return whether a folder holds an adapter without settings or tokenizer of its model, as peft writes it."""
    here = Path(folder)
    return is_adapter(here) and not ((here / "config.json").is_file() and find_tokenizer_file(here).is_file())


def _is_whole(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (FILE, INDEX))


def check_place(folder: Path) -> None:
    """Raise ValueError if the output folder of an adapter already holds a whole model."""
    if _is_whole(folder):
        raise ValueError(f"An adapter must have a folder of its own. Received: {folder}, of a model. Choose another.")


def check_whole(folder: Path) -> None:
    """Raise ValueError if a folder holds an adapter, which training cannot start from: its base model may change."""
    if is_adapter(folder):
        raise ValueError(
            f"Training must begin from a whole model. Received: {folder}, an adapter. Merge it with its base: "
            "`kbf convert ADAPTER MODEL`."
        )


def name_base(address: str | Path) -> dict[str, str | None]:
    """Return the fields of `adapter_config.json` that name the base model of an adapter.

    Args:
        address: a model directory on this disk, on the Hub (hf://org/name@revision) or elsewhere. One in the cache of
            `huggingface_hub`, models--org--name/snapshots/revision, gets its name on the Hub.
    """
    elsewhere = find_address(address)
    if elsewhere is not None and is_of_hub(elsewhere):
        name, _, revision = elsewhere.partition("://")[2].partition("@")
        return {BASE: name, "revision": revision or None}
    if elsewhere is not None:
        return {BASE: elsewhere, "revision": None}
    path = Path(address).resolve()
    repository = path.parent.parent.name
    if path.parent.name == "snapshots" and repository.startswith(_CACHED):
        return {BASE: repository.removeprefix(_CACHED).replace("--", "/"), "revision": path.name}
    return {BASE: str(path), "revision": None}


def describe_adapter(
    base: Mapping[str, str | None],
    table: FamilyTable,
    architecture: str,
    rank: int,
    alpha: float,
    tensors: Mapping[str, np.ndarray],
) -> dict[str, Any]:
    """Return the content of `adapter_config.json`.

    Args:
        base: the result of `name_base`.
        table: the table of the model's family.
        architecture: as in `SavedAs`.
        tensors: the adapter's tensors: its matrices, and weights that replace the base model's.
    """
    stacked = {  # matrices of several parts of a layer, each of its own rank
        name.removesuffix(FIRST).removeprefix(PREFIX + table.prefix): len(matrix) // rank
        for name, matrix in tensors.items()
        if name.endswith(FIRST) and len(matrix) != rank
    }
    names = [name.removeprefix(PREFIX).removeprefix(table.prefix) for name in tensors]
    whole = {name.partition(".")[0] for name in names if not name.endswith((FIRST, SECOND))}
    return {
        **base,
        "peft_type": "LORA",
        "task_type": TASK_TYPES.get(architecture),
        "inference_mode": True,
        "r": rank,
        "lora_alpha": alpha,
        **({"rank_pattern": {name: rank * parts for name, parts in stacked.items()}} if stacked else {}),
        **({"alpha_pattern": {name: alpha * parts for name, parts in stacked.items()}} if stacked else {}),
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": False,
        "target_modules": sorted(name.removesuffix(FIRST) for name in names if name.endswith(FIRST)),
        "modules_to_save": sorted(whole) or None,
    }


class AdaptedTensors(TensorMapping):
    """The tensors of a base model with an adapter merged in; each is computed when it is read.

    Args:
        base: tensors of the base model, by names without a prefix.
        adapter: tensors of the adapter, by the same names.
        find_scale: from the name of a module, the factor of the product of its matrices.
    Attributes:
        merged: names of the weights to which a product of matrices is added.
        whole: names of the tensors that the adapter replaces or adds.
    Raises:
        ValueError: a matrix lacks its counterpart, belongs to no tensor of the model, or has the wrong shape.
    """

    def __init__(self, base: StoredTensors, adapter: StoredTensors, find_scale: Callable[[str], float]):
        self._base, self._adapter, self._find_scale = base, adapter, find_scale
        modules = {name.partition(".lora_")[0] for name in adapter if ".lora_" in name}
        whole = {name: shape for name, shape in adapter.shapes.items() if ".lora_" not in name}
        self.shapes, self.path = base.shapes | whole, adapter.path
        self._adapted = {f"{module}.weight": (module + FIRST, module + SECOND) for module in modules}
        self.merged, self.whole = sorted(self._adapted), {*whole}
        known = {name for pair in self._adapted.values() for name in pair} | self.whole
        for name in adapter:
            if name not in known:
                self._refuse(name, "of a kind that is not read here")
        for name, pair in self._adapted.items():
            for matrix in pair:
                if len(adapter.shapes.get(matrix, ())) != 2:
                    self._refuse(matrix, f"of the shape {adapter.shapes.get(matrix)}")
            (_, inputs), (outputs, _) = (adapter.shapes[matrix] for matrix in pair)
            if base.shapes.get(name) != (outputs, inputs):
                self._refuse(name, f"by matrices for {(outputs, inputs)}, of {base.shapes.get(name)} in the model")

    def _refuse(self, name: str, what: str) -> NoReturn:
        raise ValueError(
            f"{self._adapter.path}: LoRA must have two matrices for a weight of the model. Received: {abridge(name)}, "
            f"{what}. Does the adapter belong to {self._base.path}?"
        )

    def __getitem__(self, name: str) -> np.ndarray:
        if name in self.whole:
            return self._adapter[name]
        if name not in self._adapted:
            return self._base[name]
        first, second = (self._adapter[matrix].astype(np.float32) for matrix in self._adapted[name])
        scale = np.float32(self._find_scale(name.removesuffix(".weight")))
        return self._base[name].astype(np.float32) + scale * (second @ first)

    def check_finite(self) -> None:
        """Raise ValueError if a tensor of the base or of the adapter holds NaN or infinity."""
        self._base.check_finite()
        self._adapter.check_finite()


def find_base(folder: Path, told: str | Path | None = None) -> Path:
    """Return the folder of an adapter's base model, downloaded if it is remote.

    Args:
        told: the base model, if it is not the one that `adapter_config.json` names.
    Raises:
        FileNotFoundError: the base model is missing.
        ValueError: `adapter_config.json` does not describe plain LoRA, or names no model and `told` is None.
    """
    config = read_adapter_config(folder)
    if told is not None:
        here = fetch(told)
        if not here.is_dir():
            raise FileNotFoundError(f"The base of an adapter must be a model directory. Received: {told}. Check it.")
        verify(here)
        return here
    base, revision = config.get(BASE), config.get("revision")
    if not isinstance(base, str) or not base:
        raise ValueError(
            f"{folder / ADAPTER_CONFIG}: must have {BASE}. Received: {abridge(repr(base))}. Name the model there, or "
            "merge the adapter with `kbf convert --base MODEL`."
        )
    here = Path(base)
    if here.is_dir():
        verify(here)
        return here
    if "://" not in base and (here.is_absolute() or base.count("/") != 1):
        raise FileNotFoundError(
            f"An adapter must be read with its model. Received: {folder / ADAPTER_CONFIG}, of {abridge(base)}, "
            f"which is not there. Set its {BASE} to where the model is now, or use `kbf convert --base MODEL`."
        )
    return fetch(base if "://" in base else f"hf://{base}" + (f"@{revision}" if revision else ""))


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """Read `adapter_config.json`.

    Raises:
        ValueError: it is damaged, or describes another method than LoRA.
    """
    path = folder / ADAPTER_CONFIG
    config = read_json(path)
    unknown: dict[str, tuple[Any, ...]] = {
        field: (None, False, 0, "", [], {}) for field in sorted(config.keys() - _PLAIN.keys() - _FREE)
    }
    for field, known in (_PLAIN | unknown).items():
        if config.get(field, known[0]) not in known:
            raise ValueError(
                f"{path}: `{abridge(field)}` must be {known[0]!r}. Received: {abridge(repr(config[field]))}. "
                "Merge the adapter with peft, and load the whole model."
            )
    rank, alpha = config.get("r"), config.get("lora_alpha")
    numbers = [rank, alpha]
    for field in PATTERNS:  # peft matches regular expressions
        pattern = config.get(field) or {}
        if not isinstance(pattern, dict) or not all(re.fullmatch(r"[\w.]+", name) for name in pattern):
            raise ValueError(
                f"{path}: `{field}` must be numbers by names of modules. Received: {abridge(repr(pattern))}. "
                "Merge the adapter with peft, and load the whole model."
            )
        numbers += pattern.values()
    if not all(isinstance(value, int | float) and 0 < value < 1 << 31 for value in numbers):
        raise ValueError(
            f"{path}: must have `r` and `lora_alpha` above 0. Received: {abridge(repr([rank, alpha]))}. "
            "Save the adapter again."
        )
    return config


def find_scale(config: Mapping[str, Any], prefix: str, module: str) -> float:
    """Return alpha / rank of a module, given without the prefix, from `adapter_config.json`."""
    found = {}
    for pattern, field in PATTERNS.items():
        own = (config.get(pattern) or {}).items()
        found[field] = next((value for name, value in own if f".{prefix}{module}".endswith(f".{name}")), config[field])
    return found["lora_alpha"] / found["r"]


def open_adapted(folder: Path, base: StoredTensors, table: FamilyTable, settings: Mapping[str, Any]) -> AdaptedTensors:
    """Return the tensors of a model with an adapter merged into them.

    Args:
        folder: the adapter's folder.
        base: tensors of the model, by names without a prefix.
        table: the table of the model's family.
        settings: content of the adapter's `config.json`.
    Raises:
        FileNotFoundError: the adapter has no file of tensors.
        ValueError: the adapter is damaged, or does not fit the model.
    """
    config, file = read_adapter_config(folder), folder / ADAPTER_FILE
    if not file.is_file():
        raise FileNotFoundError(f"An adapter must hold {ADAPTER_FILE}. Received: {folder}, without it. Copy it again.")
    adapter = open_tensors(file, STORABLE).rename(lambda name: table.normalise_name(name.removeprefix(PREFIX)))
    check_dtypes(adapter, table)
    if own_kernel := name_own_kernel(settings, table):
        adapter = adapter.squeeze(own_kernel)
    adapted = AdaptedTensors(base, adapter, partial(find_scale, config, table.prefix))
    if unread := [name for name in list_unread(table, adapter) if name in adapted.whole]:
        raise ValueError(
            f"{file}: an adapter must have tensors of the encoder or of a head. Received: {name_some(unread)}, which "
            "no model has here. Merge the adapter with peft, and load the whole model."
        )
    return adapted

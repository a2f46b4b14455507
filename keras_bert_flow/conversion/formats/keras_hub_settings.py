"""Read and write the settings, objects and tokenizers of a KerasHub preset."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers, processors
from tokenizers.models import BPE

from keras_bert_flow.console.terminal import abridge
from keras_bert_flow.conversion.directory_files import (
    MAX_NUMBER,
    MLM_ACTIVATION,
    MLM_EPSILON,
    TOKENIZER_CONFIG,
    check_vocabulary,
    describe_vocabulary,
    make_hf_config,
    make_label_fields,
    number_labels,
    read_json,
    read_labels,
    read_shape,
)
from keras_bert_flow.conversion.tables.keras_hub import (
    BYTE_PAIRS,
    CLASSIFIER,
    EMBEDDER,
    HEAD_EPSILON,
    HUB_FAMILIES,
    MASKED_LM,
    WORD_PIECE,
    HubFamily,
)
from keras_bert_flow.conversion.tables.table import FamilyTable, find_table
from keras_bert_flow.files.documents import read_json_object
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import find_family
from keras_bert_flow.text.tokenizers.files import encode_fast_tokenizer, find_tokenizer_file, read_tokenizer_file
from keras_bert_flow.text.tokenizers.settings import FAST_TOKENIZER
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer, WordRules
from keras_bert_flow.text.vocabulary import CONTINUATION, VOCABULARY_FILE, read_vocabulary, write_vocabulary

# The JSON files of a KerasHub preset: objects serialised by Keras.

BACKBONE, TOKENIZER = "Backbone", "Tokenizer"
PREPROCESSORS = {task: f"{task}Preprocessor" for task in (MASKED_LM, CLASSIFIER, EMBEDDER)}
PACKAGES = ("keras_hub", "keras_nlp")  # packages of the registered names; the second until 2024
OLD_NAMES = {"Classifier": CLASSIFIER}  # names in keras-nlp
_FILES = {
    BACKBONE: "backbone",
    TOKENIZER: "tokenizer",
    MASKED_LM: "masked_lm",
    CLASSIFIER: "text_classifier",
    EMBEDDER: "text_embedder",
}


class HubObject(NamedTuple):
    """A serialised object.

    Attributes:
        family: our name of the family.
        kind: the class name without the family: `Backbone`.
        config: the constructor arguments.
        source: the file, for messages.
    """

    family: str
    kind: str
    config: dict[str, Any]
    source: str


def serialise(hub: HubFamily, kind: str, config: dict[str, Any], dtype: str = "float32") -> dict[str, Any]:
    """Serialise an object as `keras.saving.serialize_keras_object` does.

    Args:
        dtype: dtype of a backbone, a tokenizer or a preprocessor; a task has its backbone's.
    """
    task = kind.removesuffix("Preprocessor")
    file = f"{hub.module}_{_FILES[task]}{'_preprocessor' if task != kind else ''}"
    common: dict[str, Any] = {"name": file}
    if kind not in PREPROCESSORS:
        policy = {"module": "keras", "class_name": "DTypePolicy", "config": {"name": dtype}, "registered_name": None}
        common |= {"trainable": True, "dtype": policy}
    return {
        "module": f"keras_hub.src.models.{hub.module}.{file}",
        "class_name": hub.prefix + kind,
        "config": common | config,
        "registered_name": f"keras_hub>{hub.prefix}{kind}",
    }


def read_object(path: Path) -> HubObject:
    """Read an object of KerasHub or keras-nlp.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is damaged, or of a class without a counterpart here.
    """
    content = read_json(path)
    name, registered, config = (content.get(key) for key in ("class_name", "registered_name", "config"))
    package = registered.partition(">")[0] if isinstance(registered, str) else None
    if not isinstance(name, str) or not isinstance(config, dict) or package not in PACKAGES:
        raise ValueError(
            f"{path}: must describe an object of KerasHub. Received: registered_name={abridge(repr(registered))}. "
            "Check the path."
        )
    for family, hub in HUB_FAMILIES.items():
        kind = name.removeprefix(hub.prefix)
        kind = OLD_NAMES.get(kind, kind)
        if name != kind and (kind in _FILES or kind in PREPROCESSORS.values()):
            return HubObject(family, kind, config, str(path))
    known = ", ".join(hub.prefix for hub in HUB_FAMILIES.values())
    raise ValueError(
        f"{path}: must be of one of {known}: a backbone, or one with a masked LM, a classifier or an embedder on it. "
        f"Received: {abridge(ascii(name))}. Convert a model of these."
    )


def read_number(found: HubObject, name: str, kind: type = int) -> Any:
    """Return a size, or with `kind=float` a rate; ValueError if it is not valid."""
    value = found.config.get(name)
    is_size = type(value) is int and 0 < value < MAX_NUMBER
    is_rate = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1
    if not (is_size if kind is int else is_rate):
        rule = "a positive whole number" if kind is int else "a number from 0 to below 1"
        raise ValueError(f"{found.source}: `{name}` must be {rule}. Received: {abridge(ascii(value))}. Save it again.")
    return value


# The tokenizer of a KerasHub preset: its settings in `tokenizer.json`, its vocabulary under `assets/tokenizer`.

ASSETS = Path("assets") / "tokenizer"
WORD_PIECES, BYTE_PAIR_IDS, MERGES = "vocabulary.txt", "vocabulary.json", "merges.txt"
UNKNOWN = "[UNK]"
RELEASED_PAD_ID = 1  # of all released RoBERTa models
SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
_WORD_PIECE_RULES = {"split": True, "suffix_indicator": CONTINUATION, "oov_token": UNKNOWN, "special_tokens": None}


def write_tokenizer(hub: HubFamily, source: Path, folder: Path) -> dict[str, Any] | None:
    """Write a tokenizer to a preset, and return its serialised object; None if it is missing or KerasHub lacks it.

    Args:
        source: a folder with tokenizer files in Hugging Face's layout.
    """
    file = find_tokenizer_file(source)
    if not file.is_file():
        return None
    tokenizer = read_tokenizer_file(file)
    model = None if isinstance(tokenizer, WordPieceTokenizer) else _take_byte_pairs(read_json_object(file))
    assets = folder / ASSETS
    config: dict[str, Any] = {"config_file": FAST_TOKENIZER}
    if hub.tokenizer == WORD_PIECE and isinstance(tokenizer, WordPieceTokenizer):
        if tokenizer.rules.added:
            raise ValueError(
                "A tokenizer of KerasHub must have no added tokens. Received: "
                f"{abridge(tokenizer.rules.added[0].content)} of {file}. Choose another format."
            )
        assets.mkdir(parents=True)
        write_vocabulary(assets / WORD_PIECES, tokenizer.pieces)
        fields: dict[str, Any] = {"vocabulary": None, "sequence_length": None}
        fields |= {"lowercase": not tokenizer.cased, "strip_accents": tokenizer.strips_accents}
        fields |= {} if tokenizer.rules.split_han else {"split_on_cjk": False}
        config |= fields | _WORD_PIECE_RULES | {"special_tokens_in_strings": False}
    elif hub.tokenizer == BYTE_PAIRS and model is not None:
        assets.mkdir(parents=True)
        (assets / BYTE_PAIR_IDS).write_text(json.dumps(model["vocab"]), encoding="utf-8")
        lines = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
        (assets / MERGES).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        unsplittable = [token for token in SPECIAL_TOKENS if token != "<unk>"]
        config |= {"sequence_length": None, "add_prefix_space": False, "unsplittable_tokens": unsplittable}
    else:
        return None
    return serialise(hub, TOKENIZER, config, "int32")


def read_tokenizer(folder: Path, vocabulary_size: int, max_positions: int) -> tuple[dict[str, bytes | Path], list[str]]:
    """Return the tokenizer files in Hugging Face's layout, none if the preset has no tokenizer, and remarks.

    Raises:
        FileNotFoundError: a file of it is missing.
        ValueError: it is damaged, or has settings that Hugging Face's tokenizer does not have.
    """
    path = folder / FAST_TOKENIZER
    if not path.is_file():
        return {}, ["no tokenizer, as the preset has none"]
    found = read_object(path)
    hub, assets = HUB_FAMILIES[found.family], folder / ASSETS
    if hub.tokenizer == WORD_PIECE:
        check_vocabulary(assets / WORD_PIECES, vocabulary_size)
        return _read_word_pieces(found.config, path, assets / WORD_PIECES, max_positions)
    if hub.tokenizer == BYTE_PAIRS:
        return {FAST_TOKENIZER: _read_byte_pairs(found.config, path, assets)}, []
    return {}, [f"tokenizer left out, {hub.tokenizer}: put the tokenizer.json of the model beside"]


def _read_word_pieces(
    config: Mapping[str, Any], path: Path, vocabulary: Path, max_positions: int
) -> tuple[dict[str, bytes | Path], list[str]]:
    for name, rule in _WORD_PIECE_RULES.items():
        if config.get(name, rule) not in (rule, []):
            raise ValueError(f"{path}: `{name}` must be {rule!r}. Received: {abridge(ascii(config[name]))}.")
    lowercase, strip_accents = (config.get(name, False) for name in ("lowercase", "strip_accents"))
    if not isinstance(lowercase, bool):
        raise ValueError(f"{path}: `lowercase` must be true or false. Received: {abridge(ascii(lowercase))}.")
    split_han = config.get("split_on_cjk", True)
    if not isinstance(strip_accents, bool) or not isinstance(split_han, bool):
        raise ValueError(f"{path}: `strip_accents` and `split_on_cjk` must be true or false. Correct them.")
    tokenizer = WordPieceTokenizer(read_vocabulary(vocabulary), not lowercase, WordRules(strip_accents, split_han))
    files: dict[str, Path | bytes] = {
        VOCABULARY_FILE: vocabulary,
        TOKENIZER_CONFIG: describe_vocabulary(tokenizer, max_positions),
        FAST_TOKENIZER: encode_fast_tokenizer(tokenizer.vocabulary, tokenizer.cased, tokenizer.rules),
    }
    return files, []


def _read_byte_pairs(config: Mapping[str, Any], path: Path, assets: Path) -> bytes:
    """Return the content of RoBERTa's `tokenizer.json`."""
    if config.get("add_prefix_space", False) is not False:
        raise ValueError(f"{path}: `add_prefix_space` must be false. Received: {config['add_prefix_space']!r}.")
    ids, merges = read_json(assets / BYTE_PAIR_IDS), assets / MERGES
    if not merges.is_file():
        raise FileNotFoundError(f"A tokenizer must have its merges. Received: {merges}, which is no file. Copy it.")
    lines = merges.read_text(encoding="utf-8").split("\n")
    pairs: Any = [tuple(line.split(" ")) for line in lines if line and not line.startswith("#version")]
    try:
        tokenizer = Tokenizer(BPE(ids, pairs))
        tokenizer.post_processor = processors.RobertaProcessing(
            ("</s>", ids["</s>"]), ("<s>", ids["<s>"]), trim_offsets=True, add_prefix_space=False
        )
    except Exception as error:  # the library raises bare `Exception`
        raise ValueError(f"{assets}: no byte-level BPE of RoBERTa ({abridge(repr(error))}). Copy it again.") from None
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [token for token in SPECIAL_TOKENS if token in ids]
    tokenizer.add_special_tokens([AddedToken(token, lstrip=token == "<mask>", special=True) for token in special])
    return tokenizer.to_str(pretty=True).encode()


def _take_byte_pairs(content: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the model in RoBERTa's `tokenizer.json`; None for other kinds, which KerasHub's class lacks."""
    model, splitter = content.get("model"), content.get("pre_tokenizer")
    is_known = (
        isinstance(model, dict)
        and model.get("type") == "BPE"
        and isinstance(splitter, dict)
        and splitter.get("type") == "ByteLevel"
        and splitter.get("add_prefix_space") is False
        and content.get("normalizer") is None
        and {"<s>", "<pad>", "</s>", "<mask>"} <= set(model.get("vocab", {}))
    )
    return model if is_known else None


CONFIG, TASK, METADATA = "config.json", "task.json", "metadata.json"
# Key in `metadata.json`, which KerasHub does not read, for what its own settings cannot hold, such as labels.
TRANSFORMERS = "transformers_config"
ARCHITECTURES = {None: "Model", EMBEDDER: "Model", MASKED_LM: "ForMaskedLM", CLASSIFIER: "ForSequenceClassification"}
_ACTIVATIONS = ("linear", "softmax", "sigmoid", None)


class HubModel(NamedTuple):
    """Settings from the JSON files of a preset.

    Attributes:
        architecture: class of `transformers`, without the family.
        task: class of KerasHub with the head, one of `HubFamily.heads`; None without a head.
        num_classes: number of classes of a classifier, else 0.
        config: fields of Hugging Face's `config.json`.
        is_ours: whether the preset was written by this package.
        pooling: pooling of an embedder, as in `sentence_files`.
        max_tokens: maximum length in tokens of the preprocessor.
        remarks: what is changed by reading, one clause each.
    """

    table: FamilyTable
    shape: EncoderShape
    architecture: str
    task: str | None
    num_classes: int
    config: dict[str, Any]
    is_ours: bool
    pooling: dict[str, Any]
    max_tokens: int
    remarks: tuple[str, ...]


def read_model(folder: Path) -> HubModel:
    """Read the settings of a preset.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is damaged, or describes a model that this package does not compute.
    """
    backbone = read_object(folder / CONFIG)
    if backbone.kind != BACKBONE:
        raise ValueError(f"{backbone.source}: must describe a backbone. Received: {backbone.kind}. Check the path.")
    task = read_object(folder / TASK) if (folder / TASK).is_file() else None
    if task is not None and (task.family != backbone.family or task.kind not in PREPROCESSORS):
        raise ValueError(
            f"{task.source}: must be of a task on the backbone of config.json. Received: {task.kind} of {task.family} "
            f"beside a backbone of {backbone.family}. Do the files belong together?"
        )
    hub, table = HUB_FAMILIES[backbone.family], find_table(backbone.family)
    kind, stored = task.kind if task else None, _read_stored(folder, backbone.family)
    architecture = ARCHITECTURES[kind]
    shape = _make_shape(folder, backbone, hub, kind, stored)
    config = make_hf_config(asdict(shape) | {"family": backbone.family}, architecture)
    lacking = ("attention_dropout_rate", "initializer_range")  # settings that KerasHub lacks
    free = {setting.theirs for setting in table.settings if setting.ours in lacking}
    config |= {name: value for name, value in stored.items() if name not in config or name in free}
    remarks, num_classes = [], 0
    if task and kind == CLASSIFIER:
        num_classes = read_number(task, "num_classes")
        remarks += _describe_classifier(task, shape, table, config, num_classes)
    own = [f"{name}={config[name]}" for name in (MLM_ACTIVATION, MLM_EPSILON) if name in config]
    remarks += [f"{' and '.join(own)} for the masked LM, which transformers passes over"] if own else []
    read_shape(config, str(folder / METADATA))  # checks the fields of `metadata.json`, which may have any type
    return HubModel(
        table,
        shape,
        architecture,
        kind,
        num_classes,
        config,
        bool(stored),
        _read_pooling(task) if task and kind == EMBEDDER else {},
        _read_max_tokens(task, shape),
        tuple(remarks),
    )


def _make_shape(
    folder: Path, backbone: HubObject, hub: HubFamily, task: str | None, stored: dict[str, Any]
) -> EncoderShape:
    for name, known in hub.options.items():
        if backbone.config.get(name, known) != known:
            raise ValueError(f"{backbone.source}: `{name}` must be {known}. Received: {backbone.config[name]!r}.")
    kinds = {"dropout_rate": float}
    sizes = {ours: read_number(backbone, theirs, kinds.get(ours, int)) for ours, theirs in hub.settings.items()}
    kind = find_family(backbone.family).shape
    sizes |= {"attention_dropout_rate": sizes["dropout_rate"], "hidden_act": hub.hidden_act}
    if task == MASKED_LM and hub.mlm_hidden_act != hub.hidden_act:
        sizes["mlm_hidden_act"] = hub.mlm_hidden_act
    if task == MASKED_LM and hub.layer_norm_epsilon != HEAD_EPSILON:
        sizes["mlm_layer_norm_epsilon"] = HEAD_EPSILON
    if hub.folds_positions:
        pad_id, ids = stored.get("pad_token_id"), folder / ASSETS / BYTE_PAIR_IDS
        if type(pad_id) is not int:
            pad_id = read_json(ids).get("<pad>") if ids.is_file() else None
            pad_id = pad_id if type(pad_id) is int and pad_id >= 0 else RELEASED_PAD_ID
        sizes["pad_token_id"] = pad_id  # which determines the offset of RoBERTa's positions
    try:
        return kind(**sizes)
    except ValueError as error:
        raise ValueError(f"{backbone.source}: {error}") from None


def _read_stored(folder: Path, family: str) -> dict[str, Any]:
    """Return the settings that this package stored in the preset; empty if it did not write the preset."""
    path = folder / METADATA
    stored = read_json(path).get(TRANSFORMERS, {}) if path.is_file() else {}
    if stored and (not isinstance(stored, dict) or stored.get("model_type") != family):
        raise ValueError(f"{path}: `{TRANSFORMERS}` must be of the family {family}. Do the files belong together?")
    return stored


def _describe_classifier(
    task: HubObject, shape: EncoderShape, table: FamilyTable, config: dict[str, Any], num_classes: int
) -> list[str]:
    """Add the fields of a classifier to `config`, and return remarks."""
    activation = task.config.get("activation")
    if activation not in _ACTIVATIONS:
        raise ValueError(
            f"{task.source}: `activation` must be linear, softmax or sigmoid. Received: {abridge(ascii(activation))}."
        )
    if task.config.get("hidden_dim", shape.hidden_dim) != shape.hidden_dim:
        raise ValueError(
            f"{task.source}: `hidden_dim` must be that of the backbone, {shape.hidden_dim}. Received: "
            f"{abridge(ascii(task.config['hidden_dim']))}."
        )
    config[table.classifier_dropout] = read_number(task, "dropout", float)
    if "id2label" not in config:
        config |= make_label_fields(number_labels(num_classes))
    names = config["id2label"]
    read_labels(config, task.source)  # checks that `id2label` maps numbers to names
    if len(names) != num_classes:
        raise ValueError(
            f"{task.source}: must have as many classes as labels. Received: num_classes={num_classes}, {len(names)} "
            f"labels in {METADATA}. Do the files belong together?"
        )
    if activation == "sigmoid":
        config["problem_type"] = "multi_label_classification"
    return [f"{activation} left out, as the model gives logits"] if activation not in ("linear", None) else []


def _read_pooling(task: HubObject) -> dict[str, Any]:
    pooling, normalize = task.config.get("pooling_mode", "mean"), task.config.get("normalize", True)
    if pooling not in ("mean", "max", "cls") or not isinstance(normalize, bool):
        raise ValueError(
            f"{task.source}: `pooling_mode` must be mean, max or cls, and `normalize` true or false. Received: "
            f"{abridge(ascii(pooling))}, {abridge(ascii(normalize))}."
        )
    return {"pooling": pooling, "normalize": normalize}


def _read_max_tokens(task: HubObject | None, shape: EncoderShape) -> int:
    preprocessor = task.config.get("preprocessor") if task else None
    config = preprocessor.get("config") if isinstance(preprocessor, dict) else None
    length = config.get("sequence_length") if isinstance(config, dict) else None
    return min(length, shape.max_positions) if type(length) is int and length >= 3 else shape.max_positions

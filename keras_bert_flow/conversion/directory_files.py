"""Write and read the text files of a model directory: config.json, vocab.txt, tokenizer_config.json, tokenizer.json."""

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from keras_bert_flow.console.terminal import abridge
from keras_bert_flow.conversion.tables.table import FamilyTable, Setting, find_table, find_table_of
from keras_bert_flow.files.documents import Read, read_file
from keras_bert_flow.files.documents import read_json as read_document
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import find_family
from keras_bert_flow.models.saved_as import CLASSIFIER_HEAD, TEXT_POOLINGS
from keras_bert_flow.text.tokenizers.files import (
    encode_fast_tokenizer,
    list_tokenizer_files,
    read_tokenizer_file,
    read_word_piece,
)
from keras_bert_flow.text.tokenizers.settings import FAST_TOKENIZER
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import read_vocabulary_bytes

TOKENIZER_CONFIG = "tokenizer_config.json"
# Tables are padded to a multiple of 8 or 64, in Megatron-LM of 128 per process; a few are a little larger for no such
# reason.
PADDED_TO, MAX_PADDING, MAX_SPARE_SHARE = 8, 1024, 1 / 16
SPECIAL_TOKENS = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "sep", "pad", "cls", "mask")}


def read_json(path: Path, kind: type = dict, read: Read = read_file) -> Any:
    """Read a JSON object, or another `kind` of value.

    Args:
        read: as for `documents.read_json`.
    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not JSON, or not of that kind.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"A model directory must hold {path.name}. Received: {path.parent}, without it. Check the path."
        )
    try:
        content = read_document(path, read)
    except ValueError as error:
        raise ValueError(f"{path}: not JSON ({error}). Copy or save it again.") from None
    if not isinstance(content, kind):
        name = "object" if kind is dict else "array"
        raise ValueError(f"{path}: must be a JSON {name}. Received: {type(content).__name__}.")
    return content


def check_fast_tokenizer(path: Path, vocabulary_size: int, read: Read = read_file) -> int:
    """Return the number of pieces of a `tokenizer.json`; errors as for `check_vocabulary`.

    Raises:
        ValueError: it has more pieces than the model has rows, or, in WordPiece, far fewer.
    """
    content = read_json(path, read=read)
    model = content["model"] if isinstance(content.get("model"), dict) else {}
    count, is_word_piece = (
        _count_pieces(model.get("vocab"), content.get("added_tokens")),
        model.get("type") == "WordPiece",
    )
    if count > vocabulary_size or is_word_piece and count and not _is_padded(count, vocabulary_size):
        raise ValueError(_describe_misfit(path, "pieces as the model", count, vocabulary_size))
    return count or vocabulary_size


def _count_pieces(vocabulary: Any, added: Any) -> int:
    """Return the number of pieces of a `tokenizer.json`, at least its highest id and 1.

    Args:
        vocabulary: of a Unigram model a list of pairs; others map pieces to ids.
        added: the added tokens, which are objects.
    """
    tokens = [token for token in added if isinstance(token, dict)] if isinstance(added, list) else []
    entries = vocabulary if isinstance(vocabulary, dict | list) else ()
    pieces = [entry[0] if isinstance(entry, list) and entry else entry for entry in entries]
    pieces += [token.get("content") for token in tokens]
    ids = [*vocabulary.values()] if isinstance(vocabulary, dict) else []
    ids += [token.get("id") for token in tokens]
    count = len({piece for piece in pieces if isinstance(piece, str)})
    return max([count, *(number + 1 for number in ids if type(number) is int)])


def _is_padded(count: int, rows: int) -> bool:
    """Return whether a table of so many rows can be that of so many pieces."""
    spare = rows - count
    return 0 <= spare <= MAX_SPARE_SHARE * rows or rows % PADDED_TO == 0 and 0 <= spare < MAX_PADDING


def _describe_misfit(path: Path, what: str, count: int, vocabulary_size: int) -> str:
    """Return the error of a file whose pieces are not as many as the rows of the embedding."""
    remedy = "Use the one that the model was made with"
    if count > vocabulary_size:
        remedy += f", or give the model more rows, with `resize_token_embeddings({count})` of transformers"
    return (
        f"{path}: must have as many {what}. Received: {count} {what.split()[0]}, vocabulary_size={vocabulary_size}. "
        f"{remedy}."
    )


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON object, one field per line."""
    path.write_bytes((json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())


def check_vocabulary(path: Path, vocabulary_size: int, num_pieces: int | None = None, read: Read = read_file) -> int:
    """Return the number of pieces of a `vocab.txt`.

    Args:
        vocabulary_size: number of rows of the embeddings, which some programs pad for speed.
        num_pieces: the number that the file must have, if known.
    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it has more pieces than the model has rows, or far fewer.
    """
    if not path.is_file():
        raise FileNotFoundError(f"The vocabulary must be a file. Received: {path}.")
    content = read_vocabulary_bytes(path, read)
    count = content.count(b"\n") + (not content.endswith(b"\n") and bool(content))
    if count < vocabulary_size and len(list_tokenizer_files(path)) > 1:
        with suppress(ValueError):  # of a damaged file; whoever reads the tokenizer says so
            count = max(count, len(read_tokenizer_file(path, read=read).pieces))  # with added tokens
    if num_pieces not in (None, count):
        raise ValueError(
            f"{path}: must have as many lines as the model has pieces. Received: {count} lines, {num_pieces} pieces. "
            "Use the vocabulary that the model was made with."
        )
    if not _is_padded(count, vocabulary_size):
        raise ValueError(_describe_misfit(path, "lines as the model has pieces", count, vocabulary_size))
    return count


def write_vocabulary(
    folder: Path, vocabulary_path, cased: bool | None, max_positions: int, read: Read = read_file
) -> None:
    """Copy `vocab.txt`, and write the equivalent `tokenizer.json` and the `tokenizer_config.json` of both."""
    tokenizer = read_word_piece(vocabulary_path, cased, read)
    content = encode_fast_tokenizer(tokenizer.vocabulary, tokenizer.cased, tokenizer.rules)
    if Path(vocabulary_path).resolve() != (folder / "vocab.txt").resolve():
        (folder / "vocab.txt").write_bytes(read(Path(vocabulary_path), -1))
    (folder / TOKENIZER_CONFIG).write_bytes(describe_vocabulary(tokenizer, max_positions))
    (folder / FAST_TOKENIZER).write_bytes(content)


def describe_vocabulary(tokenizer: WordPieceTokenizer, max_positions: int) -> bytes:
    """Return the content of `tokenizer_config.json` for a `vocab.txt`."""
    content = tokenizer.describe_settings() | {"model_max_length": max_positions} | SPECIAL_TOKENS
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


# Translate between the constructor arguments of our models and Hugging Face's `config.json`.

# `gelu_new` is Hugging Face's name for the tanh form of google-research/bert; the others compute the same.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
# Our fields for a masked-LM head whose values differ from the encoder's; `transformers` ignores them.
MLM_ACTIVATION, MLM_EPSILON = "mlm_hidden_act", "mlm_layer_norm_eps"
POOLING_FIELD = "classifier_pooling"  # of ModernBERT; left out for `cls`, the only pooling of BERT there
TIED_FIELD = "tie_word_embeddings"  # whether a masked-LM head shares the token embeddings; default: true
QUANTIZATION = ("quantization_config", "compression_config")  # say how `transformers` decodes quantised weights
MAX_NUMBER = 1 << 31  # upper limit of sizes; NaN and infinity are not below it
MAX_LABELS = 1_000_000
HF_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu"}


def make_hf_config(settings: dict[str, Any], architecture: str) -> dict[str, Any]:
    """Make the content of `config.json` from the arguments of a backbone.

    Args:
        architecture: as in `SavedAs`.
    """
    table = find_table(settings["family"])
    config = {"architectures": [table.class_prefix + architecture], "model_type": table.family}
    extra = {"max_positions": table.count_extra_positions(settings)}
    values = {setting: settings[setting.ours] for setting in table.settings}
    for setting, value in values.items():
        if table.written.get(setting.theirs) == value:
            continue  # it stands among those
        if not isinstance(value, str):
            config[setting.theirs] = value + extra[setting.ours] if setting.ours in extra else value
        elif value != setting.default:  # a field that `transformers` lacks
            config[setting.theirs] = value
    config |= {table.activation: HF_ACTIVATIONS[settings["hidden_act"]]}
    if table.head_activation:
        config[table.head_activation] = HF_ACTIVATIONS[settings.get("mlm_hidden_act") or settings["hidden_act"]]
    elif settings.get("mlm_hidden_act") is not None:
        config[MLM_ACTIVATION] = HF_ACTIVATIONS[settings["mlm_hidden_act"]]
    if settings.get("mlm_layer_norm_epsilon") is not None:
        config[MLM_EPSILON] = settings["mlm_layer_norm_epsilon"]
    return dict(
        table.complete_config(config | {name: value for name, value in table.written.items() if name not in config})
    )


def read_hf_config(config: dict[str, Any], source: str) -> dict[str, Any]:
    """Return the arguments of a backbone from the content of `config.json`.

    Args:
        source: the file's name, for messages.
    Raises:
        ValueError: an unknown family of encoders, a missing size, or a setting that our models do not compute.
    """
    table = find_table_of(config, source)
    config = dict(table.normalise_config(config, source))
    for name, known in table.fixed.items():
        value = config.get(name, known[0])
        if value not in known:
            raise ValueError(
                f"{source}: `{name}` must be {known[0]!r}. Received: {name}={_quote(value)}. It is not supported."
            )
    for name in QUANTIZATION:
        if config.get(name):
            raise ValueError(
                f"{source}: weights must be of floating-point numbers. Received: {name}={_quote(config[name])}. Save "
                "the model before it is quantised, or its `dequantize()` in transformers."
            )
    _check_head_fields(config, table, source)
    settings = {setting.ours: _read_setting(config, setting, source) for setting in table.settings}
    extra = table.count_extra_positions(settings)
    settings["max_positions"] -= extra
    if settings["max_positions"] < 1:
        raise ValueError(
            f"{source}: `max_position_embeddings` must be above {extra}, which no token has. Received: "
            f"max_position_embeddings={settings['max_positions'] + extra}."
        )
    hidden_act = _read_activation(config, table.activation, table.default_activation, source)
    settings |= {"family": table.family, "hidden_act": hidden_act}
    if table.head_activation:
        head_act = _read_activation(config, table.head_activation, table.default_activation, source)
        settings |= {"mlm_hidden_act": head_act} if head_act != hidden_act else {}
    elif config.get(MLM_ACTIVATION) is not None:
        settings["mlm_hidden_act"] = _read_activation(config, MLM_ACTIVATION, None, source)
    if config.get(MLM_EPSILON) is not None:
        settings["mlm_layer_norm_epsilon"] = _read_setting(config, Setting("", MLM_EPSILON, 0.0), source)
    return settings


def _read_activation(config: dict[str, Any], name: str, default: str | None, source: str) -> str:
    value = config.get(name, default)
    if not isinstance(value, str) or value not in ACTIVATIONS:
        raise ValueError(
            f"{source}: `{name}` must be one of {', '.join(ACTIVATIONS)}. Received: {name}={_quote(value)}."
        )
    return ACTIVATIONS[value]


def read_shape(config: dict[str, Any], source: str) -> EncoderShape:
    """Return the encoder shape that the content of a `config.json` describes; errors as for `read_hf_config`."""
    settings = read_hf_config(config, source)
    try:
        return find_family(settings.pop("family")).shape(**settings)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def _check_head_fields(config: dict[str, Any], table: FamilyTable, source: str) -> None:
    """Raise ValueError if a given field that describes the head has the wrong type."""
    architectures, rate = config.get("architectures"), config.get(table.classifier_dropout)
    are_names = isinstance(architectures, list) and all(isinstance(name, str) for name in architectures)
    count, poolings = config.get("num_labels"), dict.fromkeys((*TEXT_POOLINGS, *table.poolings))
    rules = {
        "architectures": (architectures is None or are_names, "a list of names"),
        "problem_type": (isinstance(config.get("problem_type"), str | None), "a text"),
        table.classifier_dropout: (rate is None or _is_number(rate) and 0 <= rate < 1, "a number from 0 to below 1"),
        POOLING_FIELD: (config.get(POOLING_FIELD) in (None, *poolings), f"one of {', '.join(poolings)}"),
        "num_labels": (count is None or type(count) is int and 0 < count <= MAX_LABELS, "a positive whole number"),
    }
    for name, (holds, rule) in rules.items():
        if not holds:
            raise ValueError(f"{source}: `{name}` must be {rule}. Received: {name}={_quote(config[name])}.")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def name_own_kernel(config: Mapping[str, Any], table: FamilyTable) -> str | None:
    """Return the kernel of a head that `transformers` lacks, as it pools texts otherwise; None if there is none.

    Files hold it with one more axis, so that the classes of `transformers` refuse it: of the right shape, they would
    read it, make up a pooler and answer at random.
    """
    if config.get(POOLING_FIELD) in (None, *table.poolings):
        return None
    named = (config.get("architectures") or [""])[0].removeprefix(table.class_prefix)
    return f"{table.name_heads(CLASSIFIER_HEAD, named or 'ForSequenceClassification')['classifier']}.weight"


def read_labels(config: dict[str, Any], source: str) -> tuple[str, ...] | None:
    """Return the class names ordered by id; None if they are the defaults `LABEL_0`, `LABEL_1` and so on."""
    names = config.get("id2label")
    if names is None:
        return None
    try:
        ordered = [str(name) for _, name in sorted((int(key), name) for key, name in names.items())]
        if sorted(int(key) for key in names) != list(range(len(names))):
            raise ValueError
    except (AttributeError, TypeError, ValueError):
        raise ValueError(
            f"{source}: `id2label` must map 0, 1, 2 ... to names. Received: id2label={_quote(names)}."
        ) from None
    return None if tuple(ordered) == number_labels(len(ordered)) else tuple(ordered)


def make_label_fields(labels: Sequence[str]) -> dict[str, dict]:
    """Return the `config.json` fields for class names."""
    return {
        "id2label": {str(index): label for index, label in enumerate(labels)},
        "label2id": {label: index for index, label in enumerate(labels)},
    }


def number_labels(count: int) -> tuple[str, ...]:
    """Return Hugging Face's default names for unnamed classes."""
    return tuple(f"LABEL_{index}" for index in range(count))


def _read_setting(config: dict[str, Any], setting: Setting, source: str) -> Any:
    value = config.get(setting.theirs, setting.default)
    if isinstance(setting.default, str):
        fits, rule = isinstance(value, str), "a text"
    elif isinstance(setting.default, bool):
        fits, rule = isinstance(value, bool), "true or false"
    elif isinstance(setting.default, float):
        fits, rule = _is_number(value) and 0 <= value < MAX_NUMBER, "a number"
    else:
        fits = type(value) is int and setting.least <= value < MAX_NUMBER
        rule = "a whole number, not negative" if setting.least == 0 else "a positive whole number"
    if not fits:
        raise ValueError(f"{source}: `{setting.theirs}` must be {rule}. Received: {setting.theirs}={_quote(value)}.")
    return value


def _quote(value: Any) -> str:
    try:
        return abridge(repr(value))
    except (RecursionError, ValueError):  # ValueError: an integer with more digits than Python prints
        return f"{type(value).__name__}, too long to print"

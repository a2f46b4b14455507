"""Translate between the constructor arguments of our models and Hugging Face's `config.json`."""

from collections.abc import Mapping, Sequence
from typing import Any

from keras_bert_flow.conversion.tables.registry import find_table, find_table_of
from keras_bert_flow.conversion.tables.table import FamilyTable, Setting
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.registry import find_family
from keras_bert_flow.models.poolings import CLS, TEXT_POOLINGS
from keras_bert_flow.models.saved_as import CLASSIFIER_HEAD
from keras_bert_flow.terminal import abridge

# `gelu_new` is Hugging Face's name for the tanh form of google-research/bert; the others compute the same.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
}
# Our fields for a masked-LM head whose values differ from the encoder's; `transformers` ignores them.
MLM_ACTIVATION, MLM_EPSILON = "mlm_hidden_act", "mlm_layer_norm_eps"
POOLING_FIELD = "classifier_pooling"  # ModernBERT's name; left out for `cls`, the only pooling of BERT there
TIED_FIELD = "tie_word_embeddings"  # whether a masked-LM head shares the token embeddings; default: true
QUANTIZATION = ("quantization_config", "compression_config")  # say how `transformers` decodes quantised weights
MAX_NUMBER = 1 << 31  # upper limit of sizes; NaN and infinity are not below it
MAX_LABELS = 1_000_000
HF_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new"}


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
        if not isinstance(value, str):
            config[setting.theirs] = value + extra.get(setting.ours, 0)
        elif value != setting.default:  # a field that `transformers` lacks
            config[setting.theirs] = value
    config |= {table.activation: HF_ACTIVATIONS[settings["hidden_act"]]}
    if settings.get("mlm_hidden_act") is not None:
        config[MLM_ACTIVATION] = HF_ACTIVATIONS[settings["mlm_hidden_act"]]
    if settings.get("mlm_layer_norm_epsilon") is not None:
        config[MLM_EPSILON] = settings["mlm_layer_norm_epsilon"]
    return config | dict(table.written)


def read_hf_config(config: dict[str, Any], source: str) -> dict[str, Any]:
    """Return the arguments of a backbone from the content of `config.json`.

    Args:
        source: the file's name, for messages.
    Raises:
        ValueError: an unknown family of encoders, a missing size, or a setting that our models do not compute.
    """
    table = find_table_of(config, source)
    for name, known in table.fixed.items():
        _refuse(config, name, known, source)
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
    settings |= {"family": table.family, "hidden_act": _read_activation(config, table.activation, "gelu", source)}
    if config.get(MLM_ACTIVATION) is not None:
        settings["mlm_hidden_act"] = _read_activation(config, MLM_ACTIVATION, None, source)
    if config.get(MLM_EPSILON) is not None:
        settings["mlm_layer_norm_epsilon"] = _number(config, Setting("", MLM_EPSILON, 0.0), source)
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
    count = config.get("num_labels")
    rules = {
        "architectures": (architectures is None or _are_texts(architectures), "a list of names"),
        "problem_type": (isinstance(config.get("problem_type"), str | None), "a text"),
        table.classifier_dropout: (rate is None or _is_number(rate) and 0 <= rate < 1, "a number from 0 to below 1"),
        POOLING_FIELD: (config.get(POOLING_FIELD) in (None, *TEXT_POOLINGS), f"one of {', '.join(TEXT_POOLINGS)}"),
        "num_labels": (count is None or type(count) is int and 0 < count <= MAX_LABELS, "a positive whole number"),
    }
    for name, (holds, rule) in rules.items():
        if not holds:
            raise ValueError(f"{source}: `{name}` must be {rule}. Received: {name}={_quote(config[name])}.")


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, str) for value in values)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def name_own_kernel(config: Mapping[str, Any], table: FamilyTable) -> str | None:
    """Return the kernel of a head that `transformers` lacks, as it pools texts otherwise; None if there is none.

    Files hold it with one more axis, so that the classes of `transformers` refuse it: of the right shape, they would
    read it, make up a pooler and answer at random.
    """
    if config.get(POOLING_FIELD) in (None, CLS):
        return None
    return f"{table.name_heads(CLASSIFIER_HEAD, 'ForSequenceClassification')['classifier']}.weight"


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
    if not isinstance(setting.default, str):
        return _number(config, setting, source)
    value = config.get(setting.theirs, setting.default)
    if not isinstance(value, str):
        raise ValueError(f"{source}: `{setting.theirs}` must be a text. Received: {setting.theirs}={_quote(value)}.")
    return value


def _number(config: dict[str, Any], setting: Setting, source: str) -> float:
    value = config.get(setting.theirs, setting.default)
    whole = setting.default is None or isinstance(setting.default, int)
    is_number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
    if not is_number or not (setting.least if whole else 0) <= value < MAX_NUMBER:
        rule = "a whole number, not negative" if whole and setting.least == 0 else "a positive whole number"
        rule = rule if whole else "a number"
        raise ValueError(f"{source}: `{setting.theirs}` must be {rule}. Received: {setting.theirs}={_quote(value)}.")
    return value


def _quote(value: Any) -> str:
    try:
        return abridge(repr(value))
    except (RecursionError, ValueError):  # ValueError: an integer with more digits than Python prints
        return f"{type(value).__name__}, too long to print"


def _refuse(config: dict[str, Any], name: str, known: tuple, source: str) -> None:
    value = config.get(name, known[0])
    if value not in known:
        raise ValueError(
            f"{source}: `{name}` must be {known[0]!r}. Received: {name}={_quote(value)}. It is not supported."
        )

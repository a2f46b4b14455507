"""The JSON files of a KerasHub preset: objects serialised by Keras."""

from pathlib import Path
from typing import Any, NamedTuple

from keras_bert_flow.conversion.directory_files import read_json
from keras_bert_flow.conversion.hf_config import MAX_NUMBER
from keras_bert_flow.conversion.tables.keras_hub import CLASSIFIER, EMBEDDER, HUB_FAMILIES, MASKED_LM, HubFamily
from keras_bert_flow.terminal import abridge

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

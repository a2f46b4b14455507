"""Registry of model formats: find one by name, or detect it from the files of a path."""

from pathlib import Path

from keras_bert_flow.by_name import load_by_name
from keras_bert_flow.conversion.formats.format import Format

# name → class, loaded lazily
FORMATS = {
    "huggingface": "keras_bert_flow.conversion.formats.huggingface:HuggingFace",
    "tensorflow": "keras_bert_flow.conversion.formats.tensorflow:TensorFlow",
    "kerashub": "keras_bert_flow.conversion.formats.keras_hub.preset:KerasHub",
    "adapter": "keras_bert_flow.conversion.formats.adapter:Adapter",
}


def find_format(name: str) -> Format:
    """Return the format with a name.

    Raises:
        ValueError: there is no such format.
    """
    if name not in FORMATS:
        raise ValueError(f"A format must be one of {', '.join(FORMATS)}. Received: {name!r}. Use one of these.")
    return load_by_name(FORMATS[name])()


def recognise(path: Path) -> str:
    """Return the name of the format of a path.

    Raises:
        FileNotFoundError: the path does not exist.
        ValueError: it matches no format, or several.
    """
    found = [name for name in FORMATS if find_format(name).recognise(path)]
    if not found and not path.exists():
        raise FileNotFoundError(f"A path must exist. Received: {path}. Check it.")
    if len(found) != 1:
        titles = " and ".join(found) or "none"
        raise ValueError(
            f"A model must be of one format, of {', '.join(FORMATS)}. Received: {path}, by its files of {titles}. "
            "Name it with --from-format, or check the path."
        )
    return found[0]

"""Registry of serving formats."""

from keras_bert_flow.by_name import load_by_name
from keras_bert_flow.export.format import ExportFormat

# name → class, loaded lazily
FORMATS = {
    "onnx": "keras_bert_flow.export.onnx_file:Onnx",
    "saved_model": "keras_bert_flow.export.saved_model:SavedModel",
    "litert": "keras_bert_flow.export.litert_file:LiteRT",
}


def find_export_format(name: str) -> ExportFormat:
    """Return the format with a name.

    Raises:
        ValueError: there is no such format.
    """
    if name not in FORMATS:
        raise ValueError(f"A serving format must be one of {', '.join(FORMATS)}. Received: {name!r}. Use one of these.")
    return load_by_name(FORMATS[name])()

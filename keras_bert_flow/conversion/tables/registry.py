"""Registry of the tables of encoder families."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_bert_flow.by_name import load_by_name
from keras_bert_flow.conversion.tables.table import FamilyTable
from keras_bert_flow.terminal import abridge

# family, Hugging Face's `model_type` → table, loaded lazily
TABLES = {
    "albert": "keras_bert_flow.conversion.tables.albert:TABLE",
    "bert": "keras_bert_flow.conversion.tables.bert:TABLE",
    "distilbert": "keras_bert_flow.conversion.tables.distilbert:TABLE",
    "electra": "keras_bert_flow.conversion.tables.electra:TABLE",
    "roberta": "keras_bert_flow.conversion.tables.roberta:TABLE",
}


def find_table(family: str) -> FamilyTable:
    """Return the table of a family, one of `TABLES`."""
    return load_by_name(TABLES[family])


def find_table_of(config: Mapping[str, Any], source: str) -> FamilyTable:
    """Return the table of the family that the content of a `config.json` names.

    Args:
        source: the file's name, for messages.
    Raises:
        ValueError: there is no such family.
    """
    if "registered_name" in config:  # an object serialised by Keras
        raise ValueError(
            f"{source}: a model directory must be as Hugging Face has it. Received: a preset of KerasHub. Make one of "
            f"it: kbf convert {Path(source).parent} NEW."
        )
    found = config.get("model_type")
    if not isinstance(found, str) or found not in TABLES:
        raise ValueError(
            f"{source}: `model_type` must be {' or '.join(map(repr, TABLES))}. Received: "
            f"model_type={abridge(repr(found))}. Convert the checkpoint first."
        )
    return find_table(found)

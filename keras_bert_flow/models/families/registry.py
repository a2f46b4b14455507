"""Find a family of encoders by its name."""

from keras_bert_flow.by_name import load_by_name
from keras_bert_flow.models.families.family import Family

# name → family, loaded when it is asked for
FAMILIES = {"bert": "keras_bert_flow.models.families.bert:FAMILY"}
DEFAULT = "bert"


def find_family(name: str) -> Family:
    """Return a family.

    Raises:
        ValueError: there is no such family.
    """
    if name not in FAMILIES:
        raise ValueError(f"A family must be one of {', '.join(FAMILIES)}. Received: family={name!r}.")
    return load_by_name(FAMILIES[name])

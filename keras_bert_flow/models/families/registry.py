"""Registry of encoder families by name."""

from keras_bert_flow.by_name import load_by_name
from keras_bert_flow.models.families.family import Family

# name → family, loaded on demand
FAMILIES = {
    "albert": "keras_bert_flow.models.families.albert:FAMILY",
    "bert": "keras_bert_flow.models.families.bert:FAMILY",
    "distilbert": "keras_bert_flow.models.families.distilbert:FAMILY",
    "electra": "keras_bert_flow.models.families.electra:FAMILY",
    "roberta": "keras_bert_flow.models.families.roberta:FAMILY",
}
DEFAULT = "bert"


def find_family(name: str) -> Family:
    """Return an encoder family by name.

    Raises:
        ValueError: there is no such family.
    """
    if name not in FAMILIES:
        raise ValueError(f"A family must be one of {', '.join(FAMILIES)}. Received: family={name!r}.")
    return load_by_name(FAMILIES[name])

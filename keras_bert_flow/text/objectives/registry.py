"""Registry of pre-training objectives."""

from functools import cache

from keras_bert_flow.by_name import load_by_name
from keras_bert_flow.text.objectives.objective import Objective
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer

# name → class, imported on first use, so that an objective needs only its own module
OBJECTIVES = {
    "mlm_nsp": "keras_bert_flow.text.objectives.mlm_nsp:NextSentence",
    "mlm": "keras_bert_flow.text.objectives.mlm:MaskedTokens",
    "mlm_sop": "keras_bert_flow.text.objectives.mlm_sop:SentenceOrder",
    "rtd": "keras_bert_flow.text.objectives.rtd:ReplacedTokens",
}
DEFAULT = "mlm_nsp"  # for records whose manifest names none


def check_joining(name: str, tokenizer: Tokenizer) -> None:
    """Raise ValueError unless a tokenizer joins two texts as the records of an objective do, with one [SEP] between."""
    if find_objective(name).has_pairs and tokenizer.separators != 1:
        raise ValueError(
            f"Records of pairs must have one separator between two texts. Received: objective={name}, a tokenizer with "
            f"{tokenizer.separators}. Use the objective mlm."
        )


@cache
def find_objective(name: str) -> Objective:
    """Return an objective by its name, one of `OBJECTIVES`.

    Raises:
        ValueError: there is no such objective.
    """
    if name not in OBJECTIVES:
        raise ValueError(f"An objective must be one of {', '.join(OBJECTIVES)}. Received: {name!r}. Use one of these.")
    return load_by_name(OBJECTIVES[name])()

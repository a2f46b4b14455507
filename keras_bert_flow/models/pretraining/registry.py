"""Registry of pre-training models by objective."""

from typing import Any

from keras_bert_flow.by_name import load_by_name

# objective → model, loaded on demand
PRETRAINERS = {
    "mlm": "keras_bert_flow.models.pretraining.masked_lm:MaskedLM",
    "mlm_nsp": "keras_bert_flow.models.pretraining.masked_lm:BertPretrainer",
    "mlm_sop": "keras_bert_flow.models.pretraining.masked_lm:BertPretrainer",
    "rtd": "keras_bert_flow.models.pretraining.replaced_tokens:ReplacedTokenPretrainer",
}


def find_pretrainer(objective: str) -> Any:
    """Return the model class for an objective, one of `text.objectives.objective.OBJECTIVES`."""
    return load_by_name(PRETRAINERS[objective])

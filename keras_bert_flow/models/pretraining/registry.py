"""Registry of pre-training models by objective."""

from typing import Any

from keras_bert_flow.by_name import Registry

# objective, one of `text.objectives.OBJECTIVES` → model class
PRETRAINERS: Registry[Any] = Registry(
    "An objective",
    {
        "mlm": "keras_bert_flow.models.pretraining.masked_lm:MaskedLM",
        "mlm_nsp": "keras_bert_flow.models.pretraining.masked_lm:BertPretrainer",
        "mlm_sop": "keras_bert_flow.models.pretraining.masked_lm:BertPretrainer",
        "rtd": "keras_bert_flow.models.pretraining.replaced_tokens:ReplacedTokenPretrainer",
    },
)

"""Pre-training objectives: one module each, without Keras.

A module defines how instances are made and their properties: the meaning of labels, their expected shares, the number
of documents needed. `OBJECTIVES` lists them. Models are in `models/`.
"""

from keras_bert_flow.by_name import Registry

# name → class, so that an objective needs only its own module
OBJECTIVES: Registry = Registry(
    "An objective",
    {
        "mlm_nsp": "keras_bert_flow.text.objectives.mlm_nsp:NextSentence",
        "mlm": "keras_bert_flow.text.objectives.mlm:MaskedTokens",
        "mlm_sop": "keras_bert_flow.text.objectives.mlm_sop:SentenceOrder",
        "mlm_sbo": "keras_bert_flow.text.objectives.mlm_sbo:SpanBoundary",
        "rtd": "keras_bert_flow.text.objectives.rtd:ReplacedTokens",
    },
)
DEFAULT = "mlm_nsp"  # for records whose manifest names none

"""RoBERTa's names in `transformers`: the tensors of BERT's encoder, and heads of its own.

Source: transformers 5, models/roberta/configuration_roberta.py and modeling_roberta.py.
"""

from dataclasses import replace

from keras_bert_flow.conversion.tables.bert import TABLE as BERT
from keras_bert_flow.conversion.tables.table import POOLER, Setting

_DEFAULTS = {"layer_norm_epsilon": 1e-5, "num_segments": 1, "max_positions": 514}

TABLE = replace(
    BERT,
    family="roberta",
    class_prefix="Roberta",
    prefix="roberta.",
    settings=(
        *(replace(setting, default=_DEFAULTS.get(setting.ours, setting.default)) for setting in BERT.settings),
        Setting("pad_token_id", "pad_token_id", 1, least=0),
    ),
    written={name: value for name, value in BERT.written.items() if name != "pad_token_id"},
    heads={
        "": {
            "cls.predictions.transform.dense": "lm_head.dense",
            "cls.predictions.transform.LayerNorm": "lm_head.layer_norm",
            "cls.predictions": "lm_head",
            "cls.predictions.decoder": "lm_head.decoder",
        },
        # The dense layer with a tanh, like the pooler's, is part of the head.
        "ForSequenceClassification": {POOLER: "classifier.dense", "classifier": "classifier.out_proj"},
    },
    count_extra_positions=lambda settings: settings["pad_token_id"] + 1,
)

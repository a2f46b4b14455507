"""ELECTRA's names in `transformers`: the tensors of BERT's encoder, and heads of its own.

Its masked LM is the generator.

Source: transformers 5, models/electra/configuration_electra.py and modeling_electra.py.
"""

from dataclasses import replace

from keras_bert_flow.conversion.tables.bert import TABLE as BERT
from keras_bert_flow.conversion.tables.table import POOLER, Setting, dense, norm, rows
from keras_bert_flow.models.families.family import WIDENING

TABLE = replace(
    BERT,
    family="electra",
    class_prefix="Electra",
    prefix="electra.",
    settings=(*BERT.settings, Setting("embedding_dim", "embedding_size", 128)),
    written=dict(BERT.written) | {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"},
    embeddings={
        "token_embedding": rows("embeddings.word_embeddings", "vocabulary_size", "embedding_dim"),
        "embeddings/position_embedding": rows("embeddings.position_embeddings", "num_position_rows", "embedding_dim"),
        "embeddings/segment_embedding": rows("embeddings.token_type_embeddings", "num_segments", "embedding_dim"),
        "embeddings/layer_norm": norm("embeddings.LayerNorm", "embedding_dim"),
        WIDENING: dense("embeddings_project", "hidden_dim", "embedding_dim"),
    },
    heads={
        "": {
            "cls.predictions.transform.dense": "generator_predictions.dense",
            "cls.predictions.transform.LayerNorm": "generator_predictions.LayerNorm",
            "cls.predictions": "generator_lm_head",
            "cls.predictions.decoder": "generator_lm_head",
        },
        "ForSequenceClassification": {POOLER: "classifier.dense", "classifier": "classifier.out_proj"},
        "ForMultipleChoice": {POOLER: "sequence_summary.summary"},
    },
)

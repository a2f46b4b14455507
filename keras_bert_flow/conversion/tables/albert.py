"""ALBERT's names in `transformers`.

Source: transformers 5, models/albert/configuration_albert.py and modeling_albert.py.
"""

from keras_bert_flow.conversion.tables.table import POOLER, FamilyTable, Setting, dense, norm, rows
from keras_bert_flow.models.families.family import EMBEDDING_PROJECTION

ALBERT = FamilyTable(
    family="albert",
    class_prefix="Albert",
    prefix="albert.",
    settings=(
        Setting("vocabulary_size", "vocab_size"),
        Setting("embedding_dim", "embedding_size"),
        Setting("num_layers", "num_hidden_layers"),
        Setting("num_groups", "num_hidden_groups", 1),
        Setting("sharing", "layer_sharing", "all"),  # our field: there, layers share whole blocks or nothing
        Setting("num_heads", "num_attention_heads"),
        Setting("hidden_dim", "hidden_size"),
        Setting("intermediate_dim", "intermediate_size"),
        Setting("max_positions", "max_position_embeddings", 512),
        Setting("num_segments", "type_vocab_size", 2),
        Setting("dropout_rate", "hidden_dropout_prob", 0.0),
        Setting("attention_dropout_rate", "attention_probs_dropout_prob", 0.0),
        Setting("layer_norm_epsilon", "layer_norm_eps", 1e-12),
        Setting("initializer_range", "initializer_range", 0.02),
    ),
    classifier_dropout="classifier_dropout_prob",
    fixed={"inner_group_num": (1,)},
    written={"inner_group_num": 1, "tie_word_embeddings": True, "pad_token_id": 0, "dtype": "float32"},
    embeddings={
        "token_embedding": rows("embeddings.word_embeddings", "vocabulary_size", "embedding_dim"),
        "embeddings/position_embedding": rows("embeddings.position_embeddings", "num_position_rows", "embedding_dim"),
        "embeddings/segment_embedding": rows("embeddings.token_type_embeddings", "num_segments", "embedding_dim"),
        "embeddings/layer_norm": norm("embeddings.LayerNorm", "embedding_dim"),
        EMBEDDING_PROJECTION: dense("encoder.embedding_hidden_mapping_in", "hidden_dim", "embedding_dim"),
    },
    block_name="encoder.albert_layer_groups.{}.albert_layers.0.",
    block={
        "attention/query_key_value": dense("attention.{query,key,value}", "hidden_dim", "hidden_dim"),
        "attention/output": dense("attention.dense", "hidden_dim", "hidden_dim"),
        "attention_layer_norm": norm("attention.LayerNorm", "hidden_dim"),
        "intermediate": dense("ffn", "intermediate_dim", "hidden_dim"),
        "output": dense("ffn_output", "hidden_dim", "intermediate_dim"),
        "output_layer_norm": norm("full_layer_layer_norm", "hidden_dim"),
    },
    pooler={POOLER: dense("pooler", "hidden_dim", "hidden_dim")},
    heads={
        "": {
            "cls.predictions.transform.dense": "predictions.dense",
            "cls.predictions.transform.LayerNorm": "predictions.LayerNorm",
            "cls.predictions": "predictions",
            "cls.predictions.decoder": "predictions.decoder",
            "cls.seq_relationship": "sop_classifier.classifier",
        }
    },
)

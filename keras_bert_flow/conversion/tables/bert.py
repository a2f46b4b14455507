"""BERT's names in `transformers`.

Source: transformers 5, models/bert/configuration_bert.py and modeling_bert.py.
"""

from keras_bert_flow.conversion.tables.table import POOLER, FamilyTable, Setting, dense, norm, rows

TABLE = FamilyTable(
    family="bert",
    class_prefix="Bert",
    prefix="bert.",
    settings=(
        Setting("vocabulary_size", "vocab_size"),
        Setting("num_layers", "num_hidden_layers"),
        Setting("num_heads", "num_attention_heads"),
        Setting("hidden_dim", "hidden_size"),
        Setting("intermediate_dim", "intermediate_size"),
        Setting("max_positions", "max_position_embeddings", 512),
        Setting("num_segments", "type_vocab_size", 2),
        Setting("dropout_rate", "hidden_dropout_prob", 0.1),
        Setting("attention_dropout_rate", "attention_probs_dropout_prob", 0.1),
        Setting("layer_norm_epsilon", "layer_norm_eps", 1e-12),
        Setting("initializer_range", "initializer_range", 0.02),
    ),
    fixed={"position_embedding_type": ("absolute",), "is_decoder": (False,), "add_cross_attention": (False,)},
    # These never vary here; they are written for readers older than transformers 5, which look for them.
    written={
        "position_embedding_type": "absolute",
        "is_decoder": False,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "use_cache": True,
        "dtype": "float32",
    },
    embeddings={
        "token_embedding": rows("embeddings.word_embeddings", "vocabulary_size", "hidden_dim"),
        "embeddings/position_embedding": rows("embeddings.position_embeddings", "num_position_rows", "hidden_dim"),
        "embeddings/segment_embedding": rows("embeddings.token_type_embeddings", "num_segments", "hidden_dim"),
        "embeddings/layer_norm": norm("embeddings.LayerNorm", "hidden_dim"),
    },
    block={
        "attention/query_key_value": dense("attention.self.{query,key,value}", "hidden_dim", "hidden_dim"),
        "attention/output": dense("attention.output.dense", "hidden_dim", "hidden_dim"),
        "attention_layer_norm": norm("attention.output.LayerNorm", "hidden_dim"),
        "intermediate": dense("intermediate.dense", "intermediate_dim", "hidden_dim"),
        "output": dense("output.dense", "hidden_dim", "intermediate_dim"),
        "output_layer_norm": norm("output.LayerNorm", "hidden_dim"),
    },
    pooler={POOLER: dense("pooler.dense", "hidden_dim", "hidden_dim")},
)

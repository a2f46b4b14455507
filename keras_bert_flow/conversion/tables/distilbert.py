"""DistilBERT's names in `transformers`.

Source: transformers 5, models/distilbert/configuration_distilbert.py and modeling_distilbert.py.
"""

from keras_bert_flow.conversion.tables.table import POOLER, FamilyTable, Setting, dense, norm, rows

_POOLER = {POOLER: "pre_classifier"}

TABLE = FamilyTable(
    family="distilbert",
    class_prefix="DistilBert",
    prefix="distilbert.",
    settings=(
        Setting("vocabulary_size", "vocab_size"),
        Setting("num_layers", "n_layers"),
        Setting("num_heads", "n_heads"),
        Setting("hidden_dim", "dim"),
        Setting("intermediate_dim", "hidden_dim"),
        Setting("max_positions", "max_position_embeddings", 512),
        Setting("dropout_rate", "dropout", 0.1),
        Setting("attention_dropout_rate", "attention_dropout", 0.1),
        Setting("initializer_range", "initializer_range", 0.02),
    ),
    activation="activation",
    classifier_dropout="seq_classif_dropout",
    fixed={"sinusoidal_pos_embds": (False,)},
    written={"sinusoidal_pos_embds": False, "tie_weights_": True, "pad_token_id": 0, "dtype": "float32"},
    embeddings={
        "token_embedding": rows("embeddings.word_embeddings", "vocabulary_size", "hidden_dim"),
        "embeddings/position_embedding": rows("embeddings.position_embeddings", "num_position_rows", "hidden_dim"),
        "embeddings/layer_norm": norm("embeddings.LayerNorm", "hidden_dim"),
    },
    block_name="transformer.layer.{}.",
    block={
        "attention/query_key_value": dense("attention.{q_lin,k_lin,v_lin}", "hidden_dim", "hidden_dim"),
        "attention/output": dense("attention.out_lin", "hidden_dim", "hidden_dim"),
        "attention_layer_norm": norm("sa_layer_norm", "hidden_dim"),
        "intermediate": dense("ffn.lin1", "intermediate_dim", "hidden_dim"),
        "output": dense("ffn.lin2", "hidden_dim", "intermediate_dim"),
        "output_layer_norm": norm("output_layer_norm", "hidden_dim"),
    },
    pooler={POOLER: dense("pre_classifier", "hidden_dim", "hidden_dim")},
    heads={
        "": {
            "cls.predictions.transform.dense": "vocab_transform",
            "cls.predictions.transform.LayerNorm": "vocab_layer_norm",
            "cls.predictions": "vocab_projector",
            "cls.predictions.decoder": "vocab_projector",
        },
        "ForSequenceClassification": _POOLER,
        "ForMultipleChoice": _POOLER,
    },
)

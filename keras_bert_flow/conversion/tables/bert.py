"""Hugging Face's names for BERT, ALBERT, DistilBERT, ELECTRA and RoBERTa.

Source: transformers 5, models/bert/configuration_bert.py and modeling_bert.py.
"""

from dataclasses import replace

from keras_bert_flow.conversion.tables.table import POOLER, FamilyTable, Setting, dense, norm, rows
from keras_bert_flow.models.families.family import EMBEDDING_PROJECTION

BERT = FamilyTable(
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


# ALBERT's names in `transformers`.
#
# Source: transformers 5, models/albert/configuration_albert.py and modeling_albert.py.

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


# DistilBERT's names in `transformers`.
#
# Source: transformers 5, models/distilbert/configuration_distilbert.py and modeling_distilbert.py.

_POOLER = {POOLER: "pre_classifier"}

DISTILBERT = FamilyTable(
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


# ELECTRA's names in `transformers`: the tensors of BERT's encoder, and heads of its own.
#
# Its masked LM is the generator.
#
# Source: transformers 5, models/electra/configuration_electra.py and modeling_electra.py.

ELECTRA = replace(
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
        EMBEDDING_PROJECTION: dense("embeddings_project", "hidden_dim", "embedding_dim"),
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


# RoBERTa's names in `transformers`: the tensors of BERT's encoder, and heads of its own.
#
# Source: transformers 5, models/roberta/configuration_roberta.py and modeling_roberta.py.

_DEFAULTS = {"layer_norm_epsilon": 1e-5, "num_segments": 1, "max_positions": 514}

ROBERTA = replace(
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

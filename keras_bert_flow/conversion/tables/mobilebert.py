"""Hugging Face's names for MobileBERT.

Source: transformers 5, models/mobilebert/configuration_mobilebert.py and modeling_mobilebert.py.
"""

from collections.abc import Mapping
from dataclasses import replace

from keras_bert_flow.conversion.tables.bert import BERT
from keras_bert_flow.conversion.tables.table import Setting, Tensors, dense, norm, rows
from keras_bert_flow.models.families.mobilebert import MobileBertShape

# Of the settings that BERT has too; `transformers` gives defaults for all of them.
_DEFAULTS = {
    "vocabulary_size": 30522,
    "num_layers": 24,
    "num_heads": 4,
    "hidden_dim": 512,
    "intermediate_dim": 512,
    "dropout_rate": 0.0,
}
# What only other variants have: no bottlenecks, or narrow inputs of attention alone.
_FIXED = {
    "trigram_input": (True,),
    "use_bottleneck": (True,),
    "use_bottleneck_attention": (False,),
}


def name_block(shape: MobileBertShape) -> Mapping[str, Tensors]:
    """Map our layers within a block to tensors: the last feed-forward has BERT's names, those before are numbered."""
    last = shape.num_feed_forwards - 1
    query_input = "bottleneck_dim" if shape.has_query_bottleneck else "hidden_dim"
    tensors = {
        "input_bottleneck": dense("bottleneck.input.dense", "bottleneck_dim", "hidden_dim"),
        "input_norm": norm("bottleneck.input.LayerNorm", "bottleneck_dim"),
        "attention_bottleneck": dense("bottleneck.attention.dense", "bottleneck_dim", "hidden_dim"),
        "attention_bottleneck_norm": norm("bottleneck.attention.LayerNorm", "bottleneck_dim"),
        "attention/query_key_value/query": dense("attention.self.query", "bottleneck_dim", query_input),
        "attention/query_key_value/key": dense("attention.self.key", "bottleneck_dim", query_input),
        "attention/query_key_value/value": dense("attention.self.value", "bottleneck_dim", "hidden_dim"),
        "attention/output": dense("attention.output.dense", "bottleneck_dim", "bottleneck_dim"),
        "attention_norm": norm("attention.output.LayerNorm", "bottleneck_dim"),
        "output_bottleneck": dense("output.bottleneck.dense", "hidden_dim", "bottleneck_dim"),
        "output_norm": norm("output.bottleneck.LayerNorm", "hidden_dim"),
    }
    if not shape.has_query_bottleneck:
        del tensors["attention_bottleneck"], tensors["attention_bottleneck_norm"]
    for number in range(shape.num_feed_forwards):
        ours, theirs = f"feed_forward_{number}/", "" if number == last else f"ffn.{number}."
        tensors |= {
            ours + "intermediate": dense(theirs + "intermediate.dense", "intermediate_dim", "bottleneck_dim"),
            ours + "output": dense(theirs + "output.dense", "bottleneck_dim", "intermediate_dim"),
            ours + "norm": norm(theirs + "output.LayerNorm", "bottleneck_dim"),
        }
    return tensors


MOBILEBERT = replace(
    BERT,
    family="mobilebert",
    class_prefix="MobileBert",
    prefix="mobilebert.",
    settings=(
        *(replace(setting, default=_DEFAULTS.get(setting.ours, setting.default)) for setting in BERT.settings),
        Setting("embedding_dim", "embedding_size", 128),
        Setting("bottleneck_dim", "intra_bottleneck_size", 128),
        Setting("num_feed_forwards", "num_feedforward_networks", 4),
        Setting("has_dense_pooler", "classifier_activation", True),
        Setting("has_query_bottleneck", "key_query_shared_bottleneck", True),
        Setting("normalization", "normalization_type", "no_norm"),
    ),
    default_activation="relu",
    fixed=_FIXED,
    written={name: known[0] for name, known in _FIXED.items()}
    | {"key_query_shared_bottleneck": True, "normalization_type": "no_norm"}
    | {"tie_word_embeddings": True, "pad_token_id": 0, "dtype": "float32"},
    embeddings={
        "token_embedding": rows("embeddings.word_embeddings", "vocabulary_size", "embedding_dim"),
        "embeddings/position_embedding": rows("embeddings.position_embeddings", "num_position_rows", "hidden_dim"),
        "embeddings/segment_embedding": rows("embeddings.token_type_embeddings", "num_segments", "hidden_dim"),
        "embeddings/projection": dense("embeddings.embedding_transformation", "hidden_dim", "trigram_dim"),
        "embeddings/norm": norm("embeddings.LayerNorm", "hidden_dim"),
    },
    block=name_block,
    heads={"": {"cls.predictions.extension": "cls.predictions.dense"}},
    untransposed=("cls.predictions.dense",),
)

"""Hugging Face's names for DeBERTa-v2 and -v3.

Half of the fields of `config.json` are none of the configuration class of `transformers`, which keeps and reads them
all the same. A masked-LM head has two sets of names: with `legacy`, its default, `transformers` reads those of BERT, as
they are written here; the other ones are those of Microsoft's checkpoints.

Source: transformers 5, models/deberta_v2/configuration_deberta_v2.py and modeling_deberta_v2.py.
"""

from collections.abc import Mapping
from typing import Any

from keras_bert_flow.console.terminal import abridge
from keras_bert_flow.conversion.tables.table import POOLER, FamilyTable, Setting, Tensors, dense, norm, rows
from keras_bert_flow.layers.patterns import RELATIVE_TERMS
from keras_bert_flow.models.families.deberta import DebertaShape
from keras_bert_flow.models.families.family import BLOCK

RELATIVE, TERMS, NORMS = "relative_attention", "pos_att_type", "norm_rel_ebd"
BUCKETS, DISTANCE = "position_buckets", "max_relative_positions"
LAYER_NORM = "layer_norm"


def normalise_config(config: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return a `config.json` with the terms of attention and the norms in one form each, and 0 for no limit.

    Raises:
        ValueError: relative attention is off and has terms, or the reverse; or attention has a width of its own.
    """
    found = dict(config)
    terms = found.get(TERMS) or []
    terms = [term.strip() for term in terms.lower().split("|")] if isinstance(terms, str) else terms
    named = "|".join(sorted({*terms} - {""})) if isinstance(terms, list) and all(map(_is_text, terms)) else None
    if named not in ("", *RELATIVE_TERMS):
        raise ValueError(
            f"{source}: `{TERMS}` must name c2p, p2c or both. Received: {TERMS}={abridge(repr(config.get(TERMS)))}."
        )
    if found.get(RELATIVE, False) is not (named != ""):
        raise ValueError(
            f"{source}: `{RELATIVE}` must be true where `{TERMS}` names a term, and false elsewhere. Received: "
            f"{RELATIVE}={abridge(repr(found.get(RELATIVE, False)))}, {TERMS}={abridge(repr(config.get(TERMS)))}. "
            f"Without relative positions, set {TERMS} to []."
        )
    norms = found.get(NORMS) or "none"
    if not isinstance(norms, str):
        raise ValueError(f"{source}: `{NORMS}` must be a text. Received: {NORMS}={abridge(repr(norms))}.")
    hidden, heads = found.get("hidden_size", 1536), found.get("num_attention_heads", 24)
    width = found.get("attention_head_size")
    if width is not None and width * heads != hidden:
        raise ValueError(
            f"{source}: `attention_head_size` must be that of `hidden_size` and `num_attention_heads`. Received: "
            f"attention_head_size={abridge(repr(width))}. Remove it."
        )
    found |= {TERMS: named, NORMS: LAYER_NORM in [norm.strip() for norm in norms.lower().split("|")]}
    found.setdefault("embedding_size", hidden)
    for name in (BUCKETS, DISTANCE):
        if type(value := found.get(name, -1)) is int and value < 0:
            found[name] = 0
    return found


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def complete_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `config.json` in the form that `transformers` reads, from that of `normalise_config`."""
    terms = config.get(TERMS, "")
    return {
        **config,
        RELATIVE: terms != "",
        TERMS: terms.split("|")[::-1] if terms else [],  # as in the released files: p2c, then c2p
        NORMS: LAYER_NORM if config[NORMS] else "none",
        BUCKETS: config[BUCKETS] or -1,
        DISTANCE: config[DISTANCE] or -1,
        "conv_act": config.get("conv_act", "tanh"),
    }


def name_block(shape: DebertaShape) -> Mapping[str, Tensors]:
    """Map our layers within a block to tensors: BERT's, and the projections of relative positions if they have own."""
    tensors = {
        "attention/query_key_value": dense(
            "attention.self.{query_proj,key_proj,value_proj}", "hidden_dim", "hidden_dim"
        ),
        "attention/output": dense("attention.output.dense", "hidden_dim", "hidden_dim"),
        "attention_layer_norm": norm("attention.output.LayerNorm", "hidden_dim"),
        "intermediate": dense("intermediate.dense", "intermediate_dim", "hidden_dim"),
        "output": dense("output.dense", "hidden_dim", "intermediate_dim"),
        "output_layer_norm": norm("output.LayerNorm", "hidden_dim"),
    }
    if not shape.shares_projections:
        for term, part in (("c2p", "key"), ("p2c", "query")):
            if term in shape.position_terms:
                theirs = f"attention.self.pos_{part}_proj"
                tensors[f"attention/position_{part}"] = dense(theirs, "hidden_dim", "hidden_dim")
    return tensors


_POOLER = {POOLER: "pooler.dense"}

DEBERTA_V2 = FamilyTable(
    family="deberta-v2",
    class_prefix="DebertaV2",
    prefix="deberta.",
    settings=(
        Setting("vocabulary_size", "vocab_size", 128_100),
        Setting("num_layers", "num_hidden_layers", 24),
        Setting("num_heads", "num_attention_heads", 24),
        Setting("hidden_dim", "hidden_size", 1536),
        Setting("intermediate_dim", "intermediate_size", 6144),
        Setting("embedding_dim", "embedding_size", 1536),
        Setting("max_positions", "max_position_embeddings", 512),
        Setting("num_segments", "type_vocab_size", 0, least=0),
        Setting("dropout_rate", "hidden_dropout_prob", 0.1),
        Setting("attention_dropout_rate", "attention_probs_dropout_prob", 0.1),
        Setting("layer_norm_epsilon", "layer_norm_eps", 1e-7),
        Setting("initializer_range", "initializer_range", 0.02),
        Setting("position_terms", TERMS, ""),
        Setting("position_buckets", BUCKETS, 0, least=0),
        Setting("max_distance", DISTANCE, 0, least=0),
        Setting("shares_projections", "share_att_key", False),
        Setting("has_relative_norm", NORMS, False),
        Setting("has_position_embeddings", "position_biased_input", True),
        Setting("convolution_width", "conv_kernel_size", 0, least=0),
        Setting("convolution_act", "conv_act", "tanh"),
    ),
    classifier_dropout="cls_dropout",
    fixed={"conv_groups": (1,), "pooler_hidden_act": ("gelu",)},
    written={
        "legacy": True,
        "pooler_dropout": 0.0,
        "pooler_hidden_act": "gelu",
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "dtype": "float32",
    },
    normalise_config=normalise_config,
    complete_config=complete_config,
    embeddings={
        "token_embedding": rows("embeddings.word_embeddings", "vocabulary_size", "embedding_dim"),
        "embeddings/position_embedding": rows(
            "embeddings.position_embeddings", "num_position_rows", "embedding_dim", exists_if="num_position_rows"
        ),
        "embeddings/segment_embedding": rows(
            "embeddings.token_type_embeddings", "num_segments", "embedding_dim", exists_if="num_segments"
        ),
        "embeddings/projection": Tensors(
            "embeddings.embed_proj", ("hidden_dim", "embedding_dim"), exists_if="has_narrow_embeddings"
        ),
        "embeddings/layer_norm": norm("embeddings.LayerNorm", "hidden_dim"),
        "relative_positions/table": rows(
            "encoder.rel_embeddings", "num_relative_rows", "hidden_dim", exists_if="num_relative_rows"
        ),
        "relative_positions/layer_norm": norm("encoder.LayerNorm", "hidden_dim", exists_if="normalizes_relative"),
        f"{BLOCK}0/convolution": Tensors(
            "encoder.conv.conv",
            ("hidden_dim", "hidden_dim", "convolution_width"),
            ("hidden_dim",),
            exists_if="convolution_width",
        ),
        "encoder_block_0/convolution/layer_norm": norm(
            "encoder.conv.LayerNorm", "hidden_dim", exists_if="convolution_width"
        ),
    },
    block=name_block,
    pooler={POOLER: dense("pooler.dense", "hidden_dim", "hidden_dim")},
    heads={"ForSequenceClassification": _POOLER, "ForMultipleChoice": _POOLER},
    renamed={
        "lm_predictions.lm_head.dense.": "cls.predictions.transform.dense.",
        "lm_predictions.lm_head.LayerNorm.": "cls.predictions.transform.LayerNorm.",
        "lm_predictions.lm_head.bias": "cls.predictions.bias",
    },
    unread=("embeddings.position_embeddings.weight",),
)

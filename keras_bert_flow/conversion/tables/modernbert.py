"""Hugging Face's names for ModernBERT, which Ettin and mmBERT have too.

`config.json` has two spellings of which layers are global and of their rotary positions: that of `transformers` 5, and
the older one of the released checkpoints. Both are read, and both are written, as older versions ignore the new one.

Source: transformers 5, models/modernbert/configuration_modernbert.py and modeling_modernbert.py.
"""

from collections.abc import Mapping
from typing import Any

from keras_bert_flow.console.terminal import abridge
from keras_bert_flow.conversion.tables.table import FamilyTable, Setting, dense, norm, rows

LAYER_TYPES, ROPE = "layer_types", "rope_parameters"
GLOBAL, LOCAL = "full_attention", "sliding_attention"
EVERY, LAYERS, NUM_LAYERS = "global_attn_every_n_layers", "num_hidden_layers", 22
THETAS = {GLOBAL: "global_rope_theta", LOCAL: "local_rope_theta"}  # kind of layer → the older field
_HEAD = {"cls.predictions.transform.dense": "head.dense", "cls.predictions.transform.LayerNorm": "head.norm"}


def normalise_config(config: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return a `config.json` with the older fields that its newer ones imply, which take precedence.

    Raises:
        ValueError: global layers are not the first of every so many, or rotary positions are scaled.
    """
    found = dict(config)
    if (types := config.get(LAYER_TYPES)) is not None:
        kinds = types if isinstance(types, list) else []
        every = next((place for place, kind in enumerate(kinds) if place and kind == GLOBAL), len(kinds)) or 1
        if kinds != list_layer_types(len(kinds), every) or len(kinds) != config.get(LAYERS, NUM_LAYERS):
            raise ValueError(
                f"{source}: `{LAYER_TYPES}` must name each layer, and of every so many the first alone {GLOBAL!r}, the "
                f"others {LOCAL!r}. Received: {abridge(repr(types))}. Another order of layers is not supported."
            )
        # With one global layer, the first, any number from that of the layers on means the same.
        if every < len(kinds) or not _fits(found.get(EVERY), every):
            found[EVERY] = every
    if (rope := config.get(ROPE)) is not None:
        for kind, name in THETAS.items():
            options = rope.get(kind) if isinstance(rope, dict) else rope
            if options is not None and (
                not isinstance(options, dict) or options.get("rope_type", "default") != "default"
            ):
                raise ValueError(
                    f"{source}: `{ROPE}` must be of the type 'default' for {GLOBAL} and {LOCAL}. Received: "
                    f"{abridge(repr(rope))}. Scaled positions are not supported."
                )
            if options and "rope_theta" in options:
                found[name] = options["rope_theta"]
    return found


def _fits(value: Any, least: int) -> bool:
    return type(value) is int and value >= least


def list_layer_types(count: int, every: int) -> list[str]:
    """Return the kind of each layer in the newer spelling."""
    return [LOCAL if place % every else GLOBAL for place in range(count)]


def complete_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a `config.json` in both spellings, from the older one."""
    older = {setting.theirs: config.get(setting.theirs, setting.default) for setting in MODERNBERT.settings}
    return {
        **config,
        LAYER_TYPES: list_layer_types(older[LAYERS], older[EVERY]),
        ROPE: {kind: {"rope_type": "default", "rope_theta": older[name]} for kind, name in THETAS.items()},
    }


MODERNBERT = FamilyTable(
    family="modernbert",
    class_prefix="ModernBert",
    prefix="model.",
    settings=(
        Setting("vocabulary_size", "vocab_size", 50368),
        Setting("num_layers", LAYERS, NUM_LAYERS),
        Setting("num_heads", "num_attention_heads", 12),
        Setting("hidden_dim", "hidden_size", 768),
        Setting("intermediate_dim", "intermediate_size", 1152),
        Setting("max_positions", "max_position_embeddings", 8192),
        Setting("local_attention", "local_attention", 128),
        Setting("global_every", EVERY, 3),
        Setting("global_theta", THETAS[GLOBAL], 160_000.0),
        Setting("local_theta", THETAS[LOCAL], 10_000.0),
        Setting("dropout_rate", "mlp_dropout", 0.0),
        Setting("embedding_dropout_rate", "embedding_dropout", 0.0),
        Setting("attention_dropout_rate", "attention_dropout", 0.0),
        Setting("layer_norm_epsilon", "norm_eps", 1e-5),
        Setting("initializer_range", "initializer_range", 0.02),
        Setting("attention_bias", "attention_bias", False),
        Setting("feed_forward_bias", "mlp_bias", False),
        Setting("norm_bias", "norm_bias", False),
        Setting("head_bias", "classifier_bias", False),
        Setting("pad_token_id", "pad_token_id", 50283, least=0),
    ),
    activation="hidden_activation",
    head_activation="classifier_activation",
    poolings=("cls", "mean"),
    fixed={"decoder_bias": (True,), "rope_scaling": (None,)},
    # The other special tokens are those of the tokenizer: no number depends on them.
    written={
        "decoder_bias": True,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": None,
        "cls_token_id": None,
        "sep_token_id": None,
        "dtype": "float32",
    },
    normalise_config=normalise_config,
    complete_config=complete_config,
    embeddings={
        "token_embedding": rows("embeddings.tok_embeddings", "vocabulary_size", "hidden_dim"),
        "embeddings/layer_norm": norm("embeddings.norm", "hidden_dim", "norm_bias"),
        "final_norm": norm("final_norm", "hidden_dim", "norm_bias"),
    },
    block_name="layers.{}.",
    block={
        "attention_norm": norm("attn_norm", "hidden_dim", "norm_bias"),
        "attention/query_key_value": dense("attn.Wqkv", "query_key_value_dim", "hidden_dim", "attention_bias", parts=3),
        "attention/output": dense("attn.Wo", "hidden_dim", "hidden_dim", "attention_bias"),
        "feed_forward_norm": norm("mlp_norm", "hidden_dim", "norm_bias"),
        "intermediate": dense(
            "mlp.Wi", "feed_forward_dim", "hidden_dim", "feed_forward_bias", parts=2, groups="gate_groups"
        ),
        "output": dense("mlp.Wo", "hidden_dim", "intermediate_dim", "feed_forward_bias"),
    },
    not_in_lowest=("attention_norm",),
    pooler={},
    heads={
        "": _HEAD | {"cls.predictions": "decoder", "cls.predictions.decoder": "decoder"},
        "ForQuestionAnswering": {"qa_outputs": "classifier"},
    },
)

"""EuroBERT and NomicBERT as a shape and a table each, of the parts that a family may choose."""

from dataclasses import dataclass, replace

from keras_bert_flow.conversion.tables.bert import BERT
from keras_bert_flow.conversion.tables.table import FamilyTable, Setting, dense, norm, rows
from keras_bert_flow.layers.patterns import Rotary
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import Family


@dataclass(frozen=True)
class EuroBertShape(EncoderShape):
    """Blocks of Llama that see both directions."""

    num_segments: int = 0
    hidden_act: str = "silu"
    theta: float = 10000.0

    normalization = "rms_norm"
    norm_bias = attention_bias = feed_forward_bias = False
    is_gated = has_final_norm = True
    has_embedding_norm = has_dense_pooler = False

    def find_positions(self, block):
        return Rotary(self.theta)


EURO_BERT = Family(
    "eurobert",
    "EuroBERT",
    EuroBertShape,
    blocks="keras_bert_flow.layers.prenorm:make_pre_norm_blocks",
    has_pooler=False,
    has_sentence_task=False,
)
EURO_BERT_BLOCK = {
    "attention_norm": norm("input_layernorm", "hidden_dim", "norm_bias"),
    "attention/query_key_value": dense(
        "self_attn.{q_proj,k_proj,v_proj}", "hidden_dim", "hidden_dim", "attention_bias"
    ),
    "attention/output": dense("self_attn.o_proj", "hidden_dim", "hidden_dim", "attention_bias"),
    "feed_forward_norm": norm("post_attention_layernorm", "hidden_dim", "norm_bias"),
    "intermediate": dense(
        "mlp.{gate_proj,up_proj}", "intermediate_dim", "hidden_dim", "feed_forward_bias", groups="gate_groups"
    ),
    "output": dense("mlp.down_proj", "hidden_dim", "intermediate_dim", "feed_forward_bias"),
}
EURO_BERT_TABLE = FamilyTable(
    family="eurobert",
    class_prefix="EuroBert",
    prefix="model.",
    settings=(
        *BERT.settings[:6],
        Setting("layer_norm_epsilon", "rms_norm_eps", 1e-5),
        Setting("theta", "rope_theta", 10000.0),
    ),
    embeddings={
        "token_embedding": rows("embed_tokens", "vocabulary_size", "hidden_dim"),
        "final_norm": norm("norm", "hidden_dim", "norm_bias"),
    },
    block_name="layers.{}.",
    block=EURO_BERT_BLOCK,
    pooler={},
    default_activation="silu",
    poolings=("late", "mean", "bos"),
    normalise_config=lambda config, source: {"rope_theta": config["rope_parameters"]["rope_theta"], **config},
)


@dataclass(frozen=True)
class NomicBertShape(EncoderShape):
    """BERT with rotary positions, SwiGLU, and biases in the norms alone."""

    hidden_act: str = "silu"
    theta: float = 1000.0

    attention_bias = feed_forward_bias = False
    is_gated = True

    def find_positions(self, block):
        return Rotary(self.theta)


NOMIC_BERT = Family("nomic_bert", "NomicBERT", NomicBertShape)
NOMIC_BERT_BLOCK = {
    "attention/query_key_value": dense("attn.Wqkv", "query_key_value_dim", "hidden_dim", "attention_bias", parts=3),
    "attention/output": dense("attn.out_proj", "hidden_dim", "hidden_dim", "attention_bias"),
    "attention_layer_norm": norm("norm1", "hidden_dim"),
    "intermediate": dense(
        "mlp.{fc12,fc11}", "intermediate_dim", "hidden_dim", "feed_forward_bias", groups="gate_groups"
    ),
    "output": dense("mlp.fc2", "hidden_dim", "intermediate_dim", "feed_forward_bias"),
    "output_layer_norm": norm("norm2", "hidden_dim"),
}
NOMIC_BERT_TABLE = replace(
    BERT,
    family="nomic_bert",
    class_prefix="NomicBert",
    prefix="nomic_bert.",
    settings=(*BERT.settings, Setting("theta", "rope_theta", 1000.0)),
    fixed={},
    written={},
    embeddings={
        "token_embedding": BERT.embeddings["token_embedding"],
        "embeddings/segment_embedding": BERT.embeddings["embeddings/segment_embedding"],
        "embeddings/layer_norm": norm("emb_ln", "hidden_dim"),
    },
    block_name="encoder.layers.{}.",
    block=NOMIC_BERT_BLOCK,
    default_activation="silu",
    normalise_config=EURO_BERT_TABLE.normalise_config,
)
NAMES = {"eurobert": "EURO_BERT", "nomic_bert": "NOMIC_BERT"}

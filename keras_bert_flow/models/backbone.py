"""Build the encoder that everything else stands on."""

import keras

from keras_bert_flow.backends.products import product_dtype
from keras_bert_flow.layers.embeddings import BertEmbeddings
from keras_bert_flow.layers.encoder import EncoderBlock
from keras_bert_flow.layers.heads import Pooler
from keras_bert_flow.layers.initializers import truncated_normal
from keras_bert_flow.layers.packing import PackTokens, UnpackTokens
from keras_bert_flow.models.frozen import FROZEN, describe_frozen, freeze
from keras_bert_flow.models.preset import load_preset, save_preset
from keras_bert_flow.models.saved_as import SavedAs
from keras_bert_flow.models.sizes import get_size

INPUT_NAMES = ("token_ids", "segment_ids", "padding_mask")


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class BertBackbone(keras.Model):
    """Encode pairs of sentences in both directions.

    Inputs, int32, (batch, length): `token_ids`, `segment_ids` (0 for the first sentence, 1 for the second) and
    `padding_mask` (1 for a real token). Outputs: `sequence_output`, (batch, length, hidden), and `pooled_output`,
    (batch, hidden), of the first token.

    Args:
        dropout_rate: after the embeddings and after each sublayer.
        attention_dropout_rate: on the attention probabilities.
        hidden_act: `gelu` (erf, the 2018 checkpoints) or `gelu_tanh` (google-research's later code).
        use_pooler: whether there is a `pooled_output`; a masked LM needs none.
        num_segments: 2 as in the released checkpoints; google-research's code defaults to 16.
        dtype: a Keras dtype policy, such as "mixed_bfloat16"; by default the global one.
    Raises:
        ValueError: `hidden_dim` is not divisible by `num_heads`, or `hidden_act` is unknown.
    Source: Devlin et al. 2019, section 3; arXiv:1810.04805.
    """

    saved_as = SavedAs("BertModel", "encoder", use_pooler=None)

    def __init__(
        self,
        vocabulary_size,
        num_layers,
        num_heads,
        hidden_dim,
        intermediate_dim,
        max_positions=512,
        num_segments=2,
        hidden_act="gelu",
        dropout_rate=0.1,
        attention_dropout_rate=0.1,
        layer_norm_epsilon=1e-12,
        initializer_range=0.02,
        use_pooler=True,
        dtype=None,
        name="bert_backbone",
    ):
        policy = keras.dtype_policies.get(dtype or keras.config.dtype_policy())
        token_embedding = keras.layers.ReversibleEmbedding(
            vocabulary_size,
            hidden_dim,
            embeddings_initializer=truncated_normal(initializer_range),
            # Keras would project in float32 under mixed precision, because embeddings do not autocast.
            reverse_dtype=product_dtype(policy.compute_dtype),
            dtype=policy,
            name="token_embedding",
        )
        embeddings = BertEmbeddings(
            max_positions=max_positions,
            num_segments=num_segments,
            dropout_rate=dropout_rate,
            layer_norm_epsilon=layer_norm_epsilon,
            initializer_range=initializer_range,
            dtype=policy,
            name="embeddings",
        )
        blocks = [
            EncoderBlock(
                hidden_dim,
                num_heads,
                intermediate_dim,
                hidden_act=hidden_act,
                dropout_rate=dropout_rate,
                attention_dropout_rate=attention_dropout_rate,
                layer_norm_epsilon=layer_norm_epsilon,
                initializer_range=initializer_range,
                dtype=policy,
                name=f"encoder_block_{index}",
            )
            for index in range(num_layers)
        ]

        inputs = {key: keras.Input((None,), dtype="int32", name=key) for key in INPUT_NAMES}
        hidden = embeddings(token_embedding(inputs["token_ids"]), inputs["segment_ids"])
        hidden = PackTokens(dtype=policy, name="pack_tokens")(hidden, inputs["padding_mask"])
        for block in blocks:
            hidden = block(hidden, inputs["padding_mask"])
        hidden = UnpackTokens(dtype=policy, name="unpack_tokens")(hidden, inputs["padding_mask"])
        outputs = {"sequence_output": hidden}
        if use_pooler:
            pooler = Pooler(hidden_dim, initializer_range=initializer_range, dtype=policy, name="pooler")
            outputs["pooled_output"] = pooler(hidden)
        super().__init__(inputs=inputs, outputs=outputs, name=name)

        self.dtype_policy = policy
        self.token_embedding = token_embedding
        self.vocabulary_size = vocabulary_size
        self.num_layers = num_layers
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.max_positions = max_positions
        self.num_segments = num_segments
        self.hidden_act = hidden_act
        self.dropout_rate = dropout_rate
        self.attention_dropout_rate = attention_dropout_rate
        self.layer_norm_epsilon = layer_norm_epsilon
        self.initializer_range = initializer_range
        self.use_pooler = use_pooler

    @classmethod
    def from_size(cls, size, vocabulary_size, **overrides):
        """Build a published size: tiny, mini, small, medium, base or large."""
        return cls(vocabulary_size=vocabulary_size, **(get_size(size) | overrides))

    @classmethod
    def from_preset(cls, path, **overrides):
        """Load from a model directory, ours or Hugging Face's; dropout rates, `dtype` and `name` may be overridden."""
        return load_preset(cls, path, **overrides)

    def save_to_preset(self, path, **details):
        """Write a model directory; see `conversion.model_directory.save_model_directory`."""
        save_preset(self, path, **details)

    def set_rematerialised(self, is_rematerialised=True):
        """Have each encoder block computed again in the backward pass, or not; before the first step of training."""
        for index in range(self.num_layers):
            self.get_layer(f"encoder_block_{index}").is_rematerialised = is_rematerialised

    def make_hidden_states_model(self):
        """Return a model with the same weights that outputs a list: the embeddings, then the output of each block."""
        names = ["embeddings"] + [f"encoder_block_{index}" for index in range(self.num_layers)]
        return keras.Model(self.input, [self.get_layer(name).output for name in names], name="hidden_states")

    def get_config(self):
        return {
            "vocabulary_size": self.vocabulary_size,
            "num_layers": self.num_layers,
            "num_heads": self.num_heads,
            "hidden_dim": self.hidden_dim,
            "intermediate_dim": self.intermediate_dim,
            "max_positions": self.max_positions,
            "num_segments": self.num_segments,
            "hidden_act": self.hidden_act,
            "dropout_rate": self.dropout_rate,
            "attention_dropout_rate": self.attention_dropout_rate,
            "layer_norm_epsilon": self.layer_norm_epsilon,
            "initializer_range": self.initializer_range,
            "use_pooler": self.use_pooler,
            "dtype": self.dtype_policy.name,
            "name": self.name,
            **describe_frozen(self),
        }

    @classmethod
    def from_config(cls, config):
        arguments = dict(config)
        frozen = arguments.pop(FROZEN, None)
        return freeze(cls(**arguments), frozen)


def require_pooler(backbone):
    """Raise ValueError unless a backbone gives a `pooled_output`, as heads for whole texts need."""
    if not backbone.use_pooler:
        raise ValueError(
            "This head must stand on a backbone with a pooler. Received: use_pooler=False, as a masked LM has it. "
            "Load the model with from_preset, which puts a new pooler on where it can, or use BertMaskedLM."
        )


def refuse_pooler(backbone):
    """Raise ValueError if a backbone has a pooler, which heads for tokens would leave untrained."""
    if backbone.use_pooler:
        raise ValueError(
            "This head must stand on a backbone without a pooler, which nothing would train. "
            "Received: use_pooler=True. Try BertBackbone(..., use_pooler=False)."
        )

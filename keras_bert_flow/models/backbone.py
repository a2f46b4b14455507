"""The encoder (backbone) as a functional Keras model: its blocks, and loading and saving of presets."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

import keras
from keras import ops

from keras_bert_flow.backends.products import product_dtype
from keras_bert_flow.by_name import load_by_name
from keras_bert_flow.layers.dense import Dense, TokenEmbedding, make_norm, truncated_normal
from keras_bert_flow.layers.encoder import ScoredBlock, scan_blocks
from keras_bert_flow.layers.masks import AttentionBias, PadInputs, UnpadInputs
from keras_bert_flow.layers.shape import EncoderShape, check_precision, check_scan
from keras_bert_flow.models.families.family import BLOCK, DEFAULT, EMBEDDING_PROJECTION, Family, find_family
from keras_bert_flow.models.reentrant import ReentrantModel
from keras_bert_flow.models.saved_as import SavedAs
from keras_bert_flow.models.sizes import get_size
from keras_bert_flow.models.trained_weights import (
    ALPHA,
    QUERY,
    TARGETS,
    VALUE,
    describe_frozen,
    describe_lora,
    describe_quantized,
    list_lora_layers,
    restore_trained,
)

REMATERIALISED = ("nothing", "blocks", "attention")  # what the backward pass may recompute

# The stack of encoder blocks on top of the embeddings.


class BlockStack:
    """The layers of an encoder above its embeddings.

    Args:
        family: the family of the encoder, which defines its blocks.
        shape: the shape of the encoder.
        dtype: a Keras dtype policy.
        prefix: of the layer names, for the second encoder of a model.
    Attributes:
        layers: a block for each layer; layers with the same block share its weights.
        blocks: the distinct blocks, from the lowest up.
        embedding_projection: the dense layer below them; None if the embeddings are as wide as the blocks.
        final_norm: the norm above them, if the shape has one.
        relative: the layer of relative positions that all of them take, if the shape has some.
    """

    def __init__(self, family: Family, shape: EncoderShape, dtype: Any, prefix: str = "") -> None:
        self.embedding_projection = None
        if shape.projects_embeddings:
            initializer = truncated_normal(shape.initializer_range)
            self.embedding_projection = Dense(
                shape.hidden_dim, kernel_initializer=initializer, dtype=dtype, name=prefix + EMBEDDING_PROJECTION
            )
        self.layers = load_by_name(family.blocks)(shape, dtype, prefix + BLOCK)
        self.blocks = list(dict.fromkeys(self.layers))
        self.final_norm = make_norm(shape, dtype, f"{prefix}final_norm") if shape.has_final_norm else None
        self.relative = None
        if shape.num_relative_rows:
            self.relative = load_by_name(family.relative)(shape, dtype=dtype, name=f"{prefix}relative_positions")
        patterns = dict.fromkeys(block.pattern for block in self.layers)
        names = (f"{prefix}attention_bias{number or ''}" for number in range(len(patterns)))
        self._biases = {
            pattern: AttentionBias(pattern, dtype="float32", name=name)
            for pattern, name in zip(patterns, names, strict=True)
        }
        self._unpad = UnpadInputs(dtype=dtype.name, name=f"{prefix}unpad_inputs")
        self._pad = PadInputs(dtype=dtype.name, name=f"{prefix}pad_inputs")

    def scan(self, embedded: Any, padding_mask: Any, training: bool | None) -> Any:
        """Return the output of the last layer as `apply` does, by `scan_blocks`."""
        hidden = embedded if self.embedding_projection is None else self.embedding_projection(embedded)
        bias = self._biases[self.layers[0].pattern](padding_mask)
        return self._finish(scan_blocks(self.layers, hidden, padding_mask, bias, training))

    def apply(self, embedded: Any, padding_mask: Any) -> tuple[Any, list[Any]]:
        """Return the output of the last layer, (batch, length, hidden), and all hidden states.

        The hidden states are the embeddings and the output of each layer, the last one after the final norm; in
        training they may be without padding, (tokens, hidden).

        Args:
            embedded: output of the embeddings, (batch, length, embedding).
            padding_mask: int, (batch, length). The number of each token's text in its row, 0 for padding.
        """
        hidden = embedded if self.embedding_projection is None else self.embedding_projection(embedded)
        hidden_states = [hidden]
        biases = {pattern: make_bias(padding_mask) for pattern, make_bias in self._biases.items()}
        relative = self._find_relative(hidden)
        hidden = self._unpad(hidden, padding_mask)
        for block in self.layers:
            hidden = block(hidden, padding_mask, biases[block.pattern], **relative)
            hidden_states.append(hidden)
        hidden_states[-1] = hidden = self._finish(hidden)
        return self._pad(hidden, padding_mask), hidden_states

    def _find_relative(self, hidden: Any) -> dict[str, Any]:
        return {} if self.relative is None else {"relative": self.relative(hidden)}

    def _finish(self, hidden: Any) -> Any:
        return hidden if self.final_norm is None else self.final_norm(hidden)

    def apply_scored(self, hidden: Any, padding_mask: Any) -> tuple[list[Any], list[Any]]:
        """Return all hidden states, with padding, and the attention scores of each layer; see `ScoredBlock`.

        Args:
            hidden: the first of the hidden states of `apply`.
        """
        scored = {block: ScoredBlock(block, name=f"{block.name}_scored") for block in self.blocks}
        biases = {pattern: make_bias(padding_mask) for pattern, make_bias in self._biases.items()}
        relative = self._find_relative(hidden)
        hidden_states, scores = [hidden], []
        for block in self.layers:
            hidden, of_block = scored[block](hidden, padding_mask, biases[block.pattern], **relative)
            hidden_states.append(hidden)
            scores.append(of_block)
        hidden_states[-1] = self._finish(hidden)
        return hidden_states, scores


# Load and save models as model directories (presets).

# `conversion` imports `models`, so these are resolved by name to avoid an import cycle.
LOAD = "keras_bert_flow.conversion.model_directory:load_model"
SAVE = "keras_bert_flow.conversion.model_directory:save_model_directory"


class PresetModel(ReentrantModel):
    """Base class of models that are loaded from a model directory and saved as one; abstract."""

    @classmethod
    def from_preset(cls, path: str | Path, **overrides: Any) -> Self:
        """Load from a model directory, ours or Hugging Face's, and note the directory for the preprocessor.

        Dropout rates, `dtype` and `name` can be overridden. If the directory has no head for the task, only its encoder
        is loaded and the head is newly initialised: if it has classes, `labels` or `num_classes` must be given.
        `new_head=True` ignores the head in the directory, for a task with other classes. A pooler that the directory
        lacks is newly initialised if the model needs one; one that it does not need is dropped.
        """
        model = load_by_name(LOAD)(cls, path, **overrides)
        getattr(model, "backbone", model).preset = str(path)
        return model

    def save_to_preset(self, path: str | Path, **details: Any) -> None:
        """Write a model directory, with the tokenizer of the preprocessor unless a vocabulary is given.

        See `conversion.model_directory.save_model_directory`.
        """
        load_by_name(SAVE)(self, path, **details)
        preprocessor = getattr(self, "preprocessor", None)
        if preprocessor is not None and details.get("vocabulary_path") is None:
            preprocessor.tokenizer.write(Path(path))


INPUT_NAMES = ("token_ids", "segment_ids", "padding_mask")


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class Backbone(PresetModel):
    """Bidirectional transformer encoder for texts or pairs of texts.

    Inputs, int32, (batch, length): `token_ids`, `segment_ids` (0 for the first text, 1 for the second) and
    `padding_mask` (1 for a real token, 0 for padding). A row may hold several texts, one after the other, which do not
    see each other: `padding_mask` is then 1, 2, … for the text that a token belongs to. Outputs: `sequence_output`,
    (batch, length, hidden), and `pooled_output`, (batch, hidden), of the first token.

    Args:
        family: the name of a module in `models.families`. Default: `bert`.
        use_pooler: whether there is a `pooled_output`; a masked LM needs none. Default: that of the family.
        dtype: a Keras dtype policy, such as "mixed_bfloat16". Default: the global one.
        sizes: fields of the family's shape: see `layers.shape.EncoderShape`. They are attributes of the backbone.
    Raises:
        ValueError: `family` or `hidden_act` is unknown, `hidden_dim` is not divisible by `num_heads`, or the dtype is
            float16 for a family whose hidden states overflow in it.
    Example:
        >>> backbone = kbf.Backbone.from_size("tiny", vocabulary_size=100, family="albert")
        >>> token_ids = np.array([[2, 7, 8, 3]])
        >>> inputs = {"token_ids": token_ids, "segment_ids": token_ids * 0, "padding_mask": token_ids * 0 + 1}
        >>> outputs = backbone.predict(inputs, verbose=0)
        >>> outputs["sequence_output"].shape, outputs["pooled_output"].shape
        ((1, 4, 128), (1, 128))
    """

    saved_as = SavedAs("Model", "encoder", use_pooler=None)

    only_family: str | None = None  # of a subclass for one family

    preset = None  # the model directory that it was loaded from by `from_preset`

    def __init__(
        self,
        family: str | None = None,
        use_pooler: bool | None = None,
        dtype: Any = None,
        name: str | None = None,
        **sizes: Any,
    ) -> None:
        family = family or self.only_family or DEFAULT
        if self.only_family not in (None, family):
            raise ValueError(
                f"A {type(self).__name__} must be of the family {self.only_family}. Received: family={family!r}. "
                "Use Backbone."
            )
        parts = find_family(family)
        shape, use_pooler = parts.shape(**sizes), parts.has_pooler if use_pooler is None else use_pooler
        policy = keras.dtype_policies.get(dtype or keras.config.dtype_policy())
        check_precision(shape, policy.compute_dtype)
        token_embedding = TokenEmbedding(
            shape.vocabulary_size,
            shape.embedding_dim,
            embeddings_initializer=truncated_normal(shape.initializer_range),
            # Without this, Keras would project in float32 under mixed precision, because embeddings do not autocast.
            reverse_dtype=product_dtype(policy.compute_dtype),
            dtype=policy,
            name="token_embedding",
        )
        embeddings = load_by_name(parts.embeddings)(shape, dtype=policy, name="embeddings")
        stack = BlockStack(parts, shape, policy)

        inputs = {key: keras.Input((None,), dtype="int32", name=key) for key in INPUT_NAMES}
        embedded = embeddings(
            token_embedding(inputs["token_ids"]), inputs["segment_ids"], padding_mask=inputs["padding_mask"]
        )
        sequence, hidden_states = stack.apply(embedded, inputs["padding_mask"])
        outputs = {"sequence_output": sequence}
        if use_pooler:
            outputs["pooled_output"] = load_by_name(parts.pooler)(shape, dtype=policy, name="pooler")(sequence)
        super().__init__(inputs=inputs, outputs=outputs, name=name or f"{family}_backbone")

        self.dtype_policy = policy
        self.token_embedding = token_embedding
        self.family = family
        self.use_pooler = use_pooler
        self.shape = shape
        self.hidden_states = hidden_states
        self.blocks = stack.blocks
        self.embedding_projection = stack.embedding_projection
        self.final_norm = stack.final_norm
        self.relative_positions = stack.relative
        self.is_scanned = False
        self._stack = stack
        for field, value in asdict(shape).items():
            setattr(self, field, value)

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None) -> Any:
        """Compute the outputs by the graph, or with one scan in place of its blocks; see `set_scanned`."""
        if not self.is_scanned:
            return super().call(inputs, training=training, mask=mask)
        token_ids, segment_ids, padding_mask = (ops.convert_to_tensor(inputs[name], "int32") for name in INPUT_NAMES)
        embedded = self.get_layer("embeddings")(self.token_embedding(token_ids), segment_ids, padding_mask=padding_mask)
        outputs = {"sequence_output": self._stack.scan(embedded, padding_mask, training)}
        if self.use_pooler:
            outputs["pooled_output"] = self.get_layer("pooler")(outputs["sequence_output"])
        return outputs

    @classmethod
    def from_size(cls, size: str, vocabulary_size: int, **overrides: Any) -> Self:
        """Build an encoder of a published size: tiny, mini, small, medium, base or large."""
        return cls(vocabulary_size=vocabulary_size, **(get_size(size) | overrides))

    def list_id_sizes(self) -> dict[str, int | None]:
        """Return input name → the number of ids that its table has, None for places in a row."""
        sizes = {"token_ids": self.vocabulary_size, "mask_positions": None}
        return sizes | ({"segment_ids": self.shape.num_segments} if self.shape.num_segments > 1 else {})

    def find_depths(self) -> dict[str, int]:
        """Return weight path → depth: 0 for the embeddings, 1 for the lowest block, and so on.

        The pooler has no depth. Weights shared by several blocks have the depth of the lowest. A final norm has that of
        the last block.
        """
        lowest = [
            self.token_embedding,
            self.get_layer("embeddings"),
            *(layer for layer in (self.embedding_projection, self.relative_positions) if layer),
        ]
        parts = [lowest, *([block] for block in self.blocks)]
        parts[-1] += [self.final_norm] if self.final_norm else []
        lowest_last = reversed([*enumerate(parts)])
        return {weight.path: depth for depth, layers in lowest_last for layer in layers for weight in layer.weights}

    def list_matrices(self) -> dict[str, int]:
        """Return the paths of the matrices of all blocks; see `Block.list_matrices`."""
        return {path: heads for block in self.blocks for path, heads in block.list_matrices().items()}

    def freeze_lowest(self, num_blocks: int) -> None:
        """Freeze the embeddings and the lowest blocks; a pooler stays trainable.

        Args:
            num_blocks: number of blocks; 0: only the embeddings.
        Raises:
            ValueError: there are fewer blocks.
        """
        if not 0 <= num_blocks <= len(self.blocks):
            raise ValueError(
                f"The frozen blocks must be from 0 to {len(self.blocks)}, those of the model. Received: {num_blocks}."
            )
        depths = self.find_depths()
        for weight in self.weights:
            if depths.get(weight.path, num_blocks + 1) <= num_blocks:
                weight.trainable = False

    def enable_lora(self, rank: int, alpha: float = ALPHA, targets: Sequence[str] = (QUERY, VALUE)) -> None:
        """Freeze the embeddings and the blocks, and add LoRA to projections of each block.

        The pooler and the head stay trainable. Call this before the model is compiled.

        Args:
            rank: rank of the matrices.
            alpha: their product is scaled by `alpha / rank`.
            targets: some of `TARGETS`; `feed_forward` means both of its projections.
        Raises:
            ValueError: the rank or a target is invalid, or LoRA is already enabled.
        """
        if not (isinstance(rank, int) and rank >= 1 and alpha > 0):
            raise ValueError(f"LoRA must have a rank of 1 or more, and an alpha above 0. Received: {rank=}, {alpha=}.")
        if not targets or not {*targets} <= {*TARGETS}:
            raise ValueError(f"LoRA must have targets among {', '.join(TARGETS)}. Received: {list(targets)}.")
        if list_lora_layers(self):
            raise ValueError("LoRA must be enabled once. Received: a backbone that has it. Load it anew.")
        self.freeze_lowest(len(self.blocks))
        for block in self.blocks:
            block.enable_lora(rank, alpha, targets)

    def set_rematerialised(self, part: bool | str = True) -> None:
        """Choose what the backward pass recomputes to save memory (gradient checkpointing), before the first step.

        It changes no result and is not saved.

        Args:
            part: one of `REMATERIALISED`, or a bool. `blocks` (True): each encoder block, of which only the input is
                kept. `attention`: scores, probabilities and their dropout, which grow with the square of the length.
                `nothing` (False).
        Raises:
            ValueError: the name is unknown.
        """
        part = REMATERIALISED[part] if isinstance(part, bool) else part
        if part not in REMATERIALISED:
            raise ValueError(f"`part` must be one of {', '.join(REMATERIALISED)}. Received: part={part!r}.")
        for block in self.blocks:
            block.is_rematerialised = part == "blocks"
            block.attention.is_rematerialised = part == "attention"

    def set_scanned(self, is_scanned: bool = True) -> None:
        """Choose whether the blocks are computed by one scan over their stacked weights, before the first step.

        A program for many layers is then smaller. Results differ by rounding alone, and weights, their names and what
        is saved are the same. Models of hidden states, such as `make_hidden_states_model`, are not scanned.

        Raises:
            ValueError: the backend is not JAX, or the blocks share weights or differ in more than their values.
        """
        if is_scanned:
            check_scan(self.shape, keras.backend.backend())
        self.is_scanned = is_scanned

    def make_hidden_states_model(self) -> ReentrantModel:
        """Return a model with the same weights that outputs a list of hidden states: embeddings, then each layer."""
        return ReentrantModel(self.input, list(self.hidden_states), name="hidden_states")

    def make_scored_model(self, name: str = "scored") -> ReentrantModel:
        """Return a model with the same weights that outputs what a student is compared by, from one forward pass.

        Outputs: `hidden_states`, a list of the embeddings and the output of each layer, (batch, length, hidden), always
        with padding; `attention_scores`, a list of those of each layer before the softmax, with the bias of the mask
        added, float32, (batch, heads, query, key). Its blocks are neither scanned nor rematerialised.
        """
        hidden_states, scores = self._stack.apply_scored(self.hidden_states[0], self.input["padding_mask"])
        outputs = {"hidden_states": hidden_states, "attention_scores": scores}
        return ReentrantModel(self.input, outputs, name=name)

    def get_config(self) -> dict[str, Any]:
        return {
            "family": self.family,
            **asdict(self.shape),
            "use_pooler": self.use_pooler,
            "dtype": self.dtype_policy.name,
            "name": self.name,
            **describe_frozen(self),
            **describe_lora(self),
            **describe_quantized(self),
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        return restore_trained(cls, config)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class BertBackbone(Backbone):
    """A `Backbone` of the family `bert`.

    Source: Devlin et al. 2019, section 3; arXiv:1810.04805.
    Example:
        >>> backbone = kbf.BertBackbone.from_size("tiny", vocabulary_size=30522)
        >>> backbone.num_layers, backbone.hidden_dim
        (2, 128)
        >>> f"{backbone.count_params():,}"
        '4,385,920'
    """

    only_family = "bert"


def require_pooler(backbone: Backbone) -> None:
    """Raise ValueError unless a backbone has a `pooled_output`, as heads for whole texts need."""
    if not backbone.use_pooler:
        raise ValueError(
            "This head needs a backbone with a pooler. Received: use_pooler=False, as a masked LM has it. "
            "Load the model with from_preset, which adds a new pooler where it can, or use MaskedLM."
        )


def refuse_pooler(backbone: Backbone) -> None:
    """Raise ValueError if a backbone has a pooler, which heads for tokens would leave untrained."""
    if backbone.use_pooler:
        raise ValueError(
            "This head needs a backbone without a pooler, which nothing would train. "
            "Received: use_pooler=True. Try Backbone(..., use_pooler=False)."
        )

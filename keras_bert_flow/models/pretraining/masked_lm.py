"""Masked language models: for pre-training, with BERT's next-sentence prediction, and to score and predict tokens."""

from dataclasses import replace

import keras
from keras import ops

from keras_bert_flow.backends.values import Tensor
from keras_bert_flow.layers.dense import OutputDense, truncated_normal
from keras_bert_flow.layers.heads import MaskedTokenTransform, OutputBias
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.backbone import Backbone, refuse_pooler, require_pooler
from keras_bert_flow.models.defaults import token_accuracy, token_loss
from keras_bert_flow.models.reentrant import ReentrantModel
from keras_bert_flow.models.saved_as import (
    MASKED_LM_EXTENSION,
    MASKED_LM_HEAD,
    MASKED_LM_TABLE,
    PAIRS_HEAD,
    SavedAs,
)
from keras_bert_flow.models.with_head import ModelWithHead, compiles_shapes, encode, make_inputs, project

(EXTENSION,) = MASKED_LM_EXTENSION


def masked_token_logits(
    backbone: Backbone,
    sequence: Tensor,
    mask_positions: Tensor,
    shape: EncoderShape | None = None,
    tie_weights: bool = True,
) -> Tensor:
    """Return the masked-LM logits at some positions.

    Args:
        backbone: the encoder.
        sequence: float, (batch, length, hidden). The backbone's output.
        mask_positions: int, (batch, masks_per_sequence).
        shape: of the encoder that computed the sequence. Default: that of the backbone.
        tie_weights: whether the token embedding is also the output projection; else the head has its own.
    Returns:
        float32 logits, (batch, masks_per_sequence, vocabulary). Only masked positions are projected to the vocabulary.
    Source: google-research/bert, run_pretraining.py, `get_masked_lm_output`.
    """
    shape = shape or backbone.shape
    transform = MaskedTokenTransform(shape, dtype=backbone.dtype_policy, name="mlm_transform")
    masked = transform(sequence, mask_positions)
    decoder = None if tie_weights else _make_table(backbone, "mlm_decoder")
    extension = _make_table(backbone, EXTENSION) if shape.mlm_extension_dim else None
    logits = _project_to_vocabulary(backbone, masked, decoder, extension)
    return OutputBias(backbone.shape.num_pieces, dtype="float32", name="mlm")(logits)


def _make_table(backbone: Backbone, name: str) -> OutputDense:
    """Return a layer that projects to the vocabulary."""
    return OutputDense(
        backbone.vocabulary_size,
        use_bias=False,
        kernel_initializer=truncated_normal(backbone.initializer_range),
        dtype=backbone.dtype_policy,
        name=name,
    )


def _project_to_vocabulary(
    backbone: Backbone, masked: Tensor, decoder: OutputDense | None, extension: OutputDense | None
) -> Tensor:
    """Return logits without their bias, (batch, masks_per_sequence, vocabulary).

    Args:
        masked: float, (batch, masks_per_sequence, `mlm_dim` of the shape). Output of the transform.
        decoder: of a head that is not tied to the token embeddings.
        extension: projects the values beyond the width of the token embeddings; None if there are none.
    """
    width = backbone.shape.embedding_dim
    narrow = masked if extension is None else masked[..., :width]
    logits = backbone.token_embedding(narrow, reverse=True) if decoder is None else decoder(narrow)
    return logits if extension is None else logits + extension(masked[..., width:])


def _name_head(saved_as: SavedAs, shape: EncoderShape, tie_weights: bool) -> SavedAs:
    """Return the `SavedAs` of a model with the layers that its masked-LM head has beyond those of BERT."""
    more = {} if tie_weights else MASKED_LM_TABLE
    more = more | MASKED_LM_EXTENSION if shape.mlm_extension_dim else more
    return replace(saved_as, head=saved_as.head | more) if more else saved_as


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class MaskedLM(ModelWithHead):
    """Masked language model, for pre-training with the objective `mlm`.

    Inputs: those of the backbone and `mask_positions`, int32, (batch, masks_per_sequence). Output: {"mlm": float32
    logits, (batch, masks_per_sequence, vocabulary)}.

    Default loss of `compile()`: the mean cross-entropy over the real predictions, with `sample_weight`
    {"mlm": mask_weights}.

    Args:
        backbone: built with `use_pooler=False`, like `BertForMaskedLM` of `transformers`.
        tie_weights: whether the token embedding is also the output projection, as in the paper.
    Raises:
        ValueError: the backbone has a pooler, which would not be trained.
    Source: Devlin et al. 2019, section 3.1, task 1; Liu et al. 2019 (RoBERTa), section 4.2, arXiv:1907.11692.
    Example:
        >>> backbone = kbf.BertBackbone.from_size("tiny", vocabulary_size=50, use_pooler=False)
        >>> model = kbf.MaskedLM(backbone)
        >>> token_ids = np.array([[2, 7, 4, 3]])
        >>> inputs = {"token_ids": token_ids, "segment_ids": token_ids * 0, "padding_mask": token_ids * 0 + 1}
        >>> model.predict(inputs | {"mask_positions": np.array([[2]])}, verbose=0)["mlm"].shape
        (1, 1, 50)
    """

    saved_as = SavedAs("ForMaskedLM", "masked LM", MASKED_LM_HEAD, use_pooler=False, is_of_task=False)
    default_measures = {"mlm": (token_loss, token_accuracy)}
    takes_packed_rows = True
    default_rate = 1e-4
    has_one_width = True
    saved_arguments = ("tie_weights",)

    def __init__(self, backbone: Backbone, tie_weights: bool = True, name: str = "masked_lm") -> None:
        refuse_pooler(backbone)
        inputs = make_inputs("mask_positions")
        sequence = encode(backbone, inputs)["sequence_output"]
        mlm = masked_token_logits(backbone, sequence, inputs["mask_positions"], tie_weights=tie_weights)
        super().__init__(backbone, inputs, {"mlm": mlm}, name)
        self.tie_weights = tie_weights
        self.saved_as = _name_head(self.saved_as, backbone.shape, tie_weights)


# BERT pre-training: the encoder with a masked-LM head and a sentence-pair head.


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class BertPretrainer(ModelWithHead):
    """BERT pre-training model: masked LM and next-sentence or sentence-order prediction.

    Inputs: those of the backbone and `mask_positions`, int32, (batch, masks_per_sequence). Outputs, float32 logits:
    `mlm`, (batch, masks_per_sequence, vocabulary), and `nsp`, (batch, 2), where label 0 is "follows" and 1 is
    "random" (objective `mlm_nsp`) or "swapped" (`mlm_sop`). Only masked positions are projected to the vocabulary.

    Default loss of `compile()`: the mean cross-entropy of each output over the real predictions, with `sample_weight`
    for both outputs, {"mlm": mask_weights, "nsp": ones}.

    Args:
        backbone: built with its pooler.
        tie_weights: whether the token embedding is also the output projection, as in the paper.
    Raises:
        ValueError: the backbone has no pooler.
    Source: Devlin et al. 2019, section 3.1; google-research/bert, run_pretraining.py.
    Example:
        >>> backbone = kbf.BertBackbone.from_size("tiny", vocabulary_size=50)
        >>> model = kbf.BertPretrainer(backbone)
        >>> model.compile(kbf.adamw(learning_rate=1e-4, total_steps=2))
        >>> history = model.fit(kbf.pretraining_dataset("records", batch_size=4), steps_per_epoch=2, verbose=0)
        >>> list(history.history)
        ['loss', 'mlm_accuracy', 'mlm_loss', 'nsp_accuracy', 'nsp_loss']
    """

    saved_as = SavedAs("ForPreTraining", "pre-trainer", MASKED_LM_HEAD | PAIRS_HEAD, is_of_task=False)
    default_measures = {"mlm": (token_loss, token_accuracy), "nsp": (token_loss, token_accuracy)}
    default_rate = 1e-4
    has_one_width = True
    saved_arguments = ("tie_weights",)

    def __init__(self, backbone: Backbone, tie_weights: bool = True, name: str = "bert_pretrainer") -> None:
        require_pooler(backbone)
        inputs = make_inputs("mask_positions")
        encoded = encode(backbone, inputs)
        sequence, positions = encoded["sequence_output"], inputs["mask_positions"]
        mlm = masked_token_logits(backbone, sequence, positions, tie_weights=tie_weights)
        nsp = project(backbone, encoded["pooled_output"], 2, "nsp", truncated_normal)
        super().__init__(backbone, inputs, {"mlm": mlm, "nsp": nsp}, name)
        self.tie_weights = tie_weights
        self.saved_as = _name_head(self.saved_as, backbone.shape, tie_weights)


# Models with the weights of a masked LM, for its predictions.

LOG_PROBABILITIES = "log_probabilities"


def make_token_scorer(masked_lm: keras.Model) -> keras.Model:
    """Return a model with the weights of a masked LM that outputs the log-probability of given tokens.

    Only these are transferred from the device: 512 masks have 15.6 million logits with a vocabulary of 30,522.

    Args:
        masked_lm: its output `mlm` is float32 logits, (batch, masks, vocabulary).
    Returns:
        A model with the inputs of the masked LM, and `target_ids`, int32, (batch, masks), the tokens to score. Its
        output is {"log_probabilities": float32, (batch, masks)}, in nats.
    """
    target_ids = keras.Input((None,), dtype="int32", name="target_ids")
    logits = masked_lm.output["mlm"]
    chosen = ops.take_along_axis(logits, ops.expand_dims(target_ids, -1), axis=-1)  # (batch, masks, 1)
    scores = ops.squeeze(chosen, -1) - ops.logsumexp(logits, axis=-1)
    inputs = dict(masked_lm.input) | {"target_ids": target_ids}
    model = ReentrantModel(inputs, {LOG_PROBABILITIES: scores}, name="token_scorer")
    model.compiles_shapes = compiles_shapes(model)
    return model


def make_vocabulary_model(masked_lm: keras.Model) -> keras.Model:
    """Return a model with the weights of a `MaskedLM` that outputs logits at all positions, as in `transformers`.

    Returns:
        A model with the inputs of the backbone. Its output is float32 logits, (batch, length, vocabulary).
    """
    backbone, transform = masked_lm.backbone, masked_lm.get_layer("mlm_transform")
    inputs = make_inputs()
    hidden = transform.layer_norm(transform.dense(encode(backbone, inputs)["sequence_output"]))
    decoder = None if masked_lm.tie_weights else masked_lm.get_layer("mlm_decoder")
    extension = masked_lm.get_layer(EXTENSION) if backbone.shape.mlm_extension_dim else None
    logits = masked_lm.get_layer("mlm")(_project_to_vocabulary(backbone, hidden, decoder, extension))
    model = ReentrantModel(inputs, logits, name="vocabulary_logits")
    model.backbone = backbone
    return model

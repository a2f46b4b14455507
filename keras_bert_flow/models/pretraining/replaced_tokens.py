"""Replaced token detection (ELECTRA): detect which tokens a small masked LM has replaced."""

from functools import partial

import keras

from keras_bert_flow.layers.dense import Dense, get_activation, truncated_normal
from keras_bert_flow.layers.heads import DetectionLogits, ReplaceTokens
from keras_bert_flow.models.backbone import Backbone, BlockStack, refuse_pooler
from keras_bert_flow.models.defaults import token_accuracy, token_loss
from keras_bert_flow.models.families.family import find_family
from keras_bert_flow.models.losses import BinaryTokenAccuracy, BinaryTokenLoss
from keras_bert_flow.models.pretraining.masked_lm import masked_token_logits
from keras_bert_flow.models.saved_as import REPLACED_TOKENS_HEAD, SavedAs
from keras_bert_flow.models.with_head import ModelWithHead, encode, make_inputs, project

GENERATOR = "generator_"  # prefix of its layer names
FAMILIES = ("electra",)  # families with such a model in `transformers`
SAVED_AS = SavedAs("ForPreTraining", "detector", REPLACED_TOKENS_HEAD, use_pooler=False, is_of_task=False)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class ReplacedTokenDetector(ModelWithHead):
    """Replaced token detector, ELECTRA's discriminator.

    Inputs: those of the backbone. Output: float32 logits, (batch, length), above 0 for replaced tokens. Default loss
    of `compile()`: the mean binary cross-entropy over tokens, weighted by `sample_weight`, (batch, length).

    Args:
        backbone: of the family `electra`, which has no pooler.
    Raises:
        ValueError: another family, or a pooler.
    Source: Clark et al. 2020, section 2; arXiv:2003.10555.
    Example:
        >>> model = kbf.ReplacedTokenDetector(kbf.Backbone.from_size("tiny", 50, family="electra"))
        >>> token_ids = np.array([[2, 7, 8, 3]])
        >>> inputs = {"token_ids": token_ids, "segment_ids": token_ids * 0, "padding_mask": token_ids * 0 + 1}
        >>> model.predict(inputs, verbose=0).shape
        (1, 4)
    """

    saved_as = SAVED_AS
    default_measures = {None: (BinaryTokenLoss, partial(BinaryTokenAccuracy, name="accuracy"))}
    takes_packed_rows = True
    default_rate = 1e-4

    def __init__(self, backbone: Backbone, name: str = "replaced_token_detector") -> None:
        refuse_pooler(backbone)
        if backbone.family not in FAMILIES:
            raise ValueError(
                f"Replaced tokens must be told by a family that has a model for it: {', '.join(FAMILIES)}. Received: "
                f"family={backbone.family!r}."
            )
        inputs = make_inputs()
        hidden = Dense(
            backbone.hidden_dim,
            activation=get_activation(backbone.hidden_act),
            kernel_initializer=truncated_normal(backbone.initializer_range),
            dtype=backbone.dtype_policy,
            name="replaced_dense",
        )(encode(backbone, inputs)["sequence_output"])
        logits = project(backbone, hidden, 1, "replaced", truncated_normal)
        super().__init__(backbone, inputs, logits[..., 0], name)


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class ReplacedTokenPretrainer(ModelWithHead):
    """ELECTRA pre-training: a generator, which is a narrow masked LM, and a detector of its samples; objective `rtd`.

    Both share the embeddings. The detector learns from all tokens, the generator from the masked ones; no gradient
    flows between them. A model directory contains only the detector.

    Inputs: those of the backbone; `mask_positions` and `mask_ids`, int32, (batch, masks_per_sequence); and
    `replacement_draws`, float32, (batch, masks_per_sequence), uniform in [0, 1), which determine the replacements.
    Outputs, float32 logits: `mlm` of the generator, (batch, masks_per_sequence, vocabulary), and `rtd`, (batch, length,
    2), of an incorrect and a correct detection: all labels are 1, with weight 1 for real tokens.

    Args:
        backbone: of the detector.
        generator_size: width of the generator as a share of the backbone's, above 0 and at most 1. It applies to
            attention heads, hidden and intermediate width. The number of layers is the same.
        replaced_token_weight: of the detector's loss; the generator's has weight 1.
    Raises:
        ValueError: as for `ReplacedTokenDetector`.
    Source: Clark et al. 2020, sections 2, 3.1 and 3.2; google-research/electra, pretrain_model.py.
    Example:
        >>> backbone = kbf.Backbone.from_size("tiny", vocabulary_size=50, family="electra")
        >>> model = kbf.ReplacedTokenPretrainer(backbone, generator_size=0.5)
        >>> model.generator_shape.hidden_dim, model.detector.backbone.hidden_dim
        (64, 128)
        >>> model.output["mlm"].shape, model.output["rtd"].shape
        ((None, None, 50), (None, None, 2))
    """

    saved_as = SAVED_AS
    default_measures = {"mlm": (token_loss, token_accuracy), "rtd": (token_loss, token_accuracy)}
    takes_packed_rows = True
    default_rate = 5e-4
    has_one_width = True
    settings = saved_arguments = ("generator_size", "replaced_token_weight")

    def __init__(
        self,
        backbone: Backbone,
        generator_size: float = 0.25,
        replaced_token_weight: float = 50.0,
        name: str = "replaced_token_pretrainer",
    ) -> None:
        detector = ReplacedTokenDetector(backbone)
        inputs = make_inputs("mask_positions", "mask_ids")
        draws = inputs["replacement_draws"] = keras.Input((None,), dtype="float32", name="replacement_draws")
        shape = backbone.shape.narrow(generator_size)
        embedded = backbone.get_layer("embeddings")(
            backbone.token_embedding(inputs["token_ids"]), inputs["segment_ids"], padding_mask=inputs["padding_mask"]
        )  # (batch, length, embedding)
        generator = BlockStack(find_family(backbone.family), shape, backbone.dtype_policy, GENERATOR)
        sequence, _ = generator.apply(embedded, inputs["padding_mask"])
        mlm = masked_token_logits(backbone, sequence, inputs["mask_positions"], shape)
        replaced = ReplaceTokens(dtype="float32", name="replace_tokens")(
            inputs["token_ids"], inputs["mask_positions"], inputs["mask_ids"], mlm, draws
        )
        logits = detector(
            {
                "token_ids": replaced["token_ids"],
                "segment_ids": inputs["segment_ids"],
                "padding_mask": inputs["padding_mask"],
            }
        )
        rtd = DetectionLogits(dtype="float32", name="rtd")(logits, replaced["is_replaced"])
        super().__init__(backbone, inputs, {"mlm": mlm, "rtd": rtd}, name)
        self.detector = detector
        self.generator_blocks, self.generator_shape = generator.blocks, shape
        self.generator_size, self.replaced_token_weight = generator_size, replaced_token_weight
        self.default_loss_weights = {"mlm": 1.0, "rtd": replaced_token_weight}

    def find_published(self) -> "ModelWithHead":
        return self.detector

    def list_matrices(self) -> dict[str, int]:
        return super().list_matrices() | {
            path: heads for block in self.generator_blocks for path, heads in block.list_matrices().items()
        }

"""Published model sizes, the encoder shape of a configuration, FLOPs, and which students fit a teacher."""

from dataclasses import dataclass, fields
from typing import Any

from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import find_family

# Source: Devlin et al. 2019, section 3 (base, large); Turc et al. 2019, table 1, arXiv:1908.08962 (the others).
SIZES = {
    "tiny": {"num_layers": 2, "hidden_dim": 128, "num_heads": 2, "intermediate_dim": 512},
    "mini": {"num_layers": 4, "hidden_dim": 256, "num_heads": 4, "intermediate_dim": 1024},
    "small": {"num_layers": 4, "hidden_dim": 512, "num_heads": 8, "intermediate_dim": 2048},
    "medium": {"num_layers": 8, "hidden_dim": 512, "num_heads": 8, "intermediate_dim": 2048},
    "base": {"num_layers": 12, "hidden_dim": 768, "num_heads": 12, "intermediate_dim": 3072},
    "large": {"num_layers": 24, "hidden_dim": 1024, "num_heads": 16, "intermediate_dim": 4096},
}

# Of a span boundary head: the width of its position embeddings (Joshi et al. 2020, section 3.2), and their number, of
# the tokens of a span that it predicts (README of facebookresearch/SpanBERT).
SPAN_POSITION_DIM, MAX_SPAN_TARGETS = 200, 15


def get_size(name: str) -> dict[str, int]:
    """Return the shape arguments of a published size by name.

    Raises:
        ValueError: there is no such size.
    """
    if name not in SIZES:
        raise ValueError(f"A size must be one of {', '.join(SIZES)}. Received: size={name!r}. Try 'tiny'.")
    return dict(SIZES[name])


def resolve_shape(model: Any, vocabulary_size: int) -> EncoderShape:
    """Return the shape of an encoder: a published size with overrides.

    Args:
        model: has `family`, `size`, attributes with the names of shape fields (None: not overridden), and `options`,
            further fields by name.
    Raises:
        ValueError: the family or size is unknown, or the settings contradict each other.
    """
    kind = find_family(model.family).shape
    names = [field.name for field in fields(kind)]
    given = {name: getattr(model, name) for name in names if getattr(model, name, None) is not None}
    for name in model.options:
        if name not in names or hasattr(model, name) or name == "vocabulary_size":
            own = [name for name in names if not hasattr(model, name) and name != "vocabulary_size"]
            raise ValueError(
                f"`model.options` must be fields of the family {model.family}: {', '.join(own)}. Received: {name}."
            )
    return kind(**get_size(model.size) | given | model.options | {"vocabulary_size": vocabulary_size})


# FLOPs of pre-training, counted from the architecture.


@dataclass(frozen=True)
class Flops:
    """FLOPs of one sequence; a multiply-add counts as two.

    Attributes:
        encoder: forward pass of all blocks, and of the embedding projection.
        embeddings: forward pass of the segment embeddings, a one-hot product here. Tokens are looked up, positions
            added.
        pooler: forward pass of the pooler and the two-way head; 0 without a pooler.
        gather: forward pass of gathering the masked positions, a one-hot product here.
        masked_lm: forward pass of the head at those positions, with the projection to the vocabulary.
        bag_of_words: forward pass of the head on the mean of the tokens, with that projection; 0 without this head.
        generator: forward pass of the blocks of a generator, and of its embedding projection; 0 without a generator.
        detector: forward pass of the head that detects replaced tokens; 0 without a generator.
        span_boundary: forward pass of the head that predicts masked tokens from the boundaries of their span, with the
            projection to the vocabulary; 0 without this head.
        span_gather: forward pass of gathering these boundaries, and the places in the span.
    """

    encoder: int
    embeddings: int
    pooler: int
    gather: int
    masked_lm: int
    bag_of_words: int
    generator: int = 0
    detector: int = 0
    span_boundary: int = 0
    span_gather: int = 0

    @property
    def forward(self) -> int:
        heads = self.pooler + self.gather + self.masked_lm + self.bag_of_words + self.detector
        heads += self.span_boundary + self.span_gather
        return self.encoder + self.generator + self.embeddings + heads

    @property
    def training(self) -> int:
        """FLOPs of forward and backward pass: each product has two gradients of the same cost, of inputs and weights.

        Those of `embeddings` and gathers have one gradient: their one-hot operand needs none.
        """
        return 3 * self.forward - self.embeddings - self.gather - self.span_gather


def count_flops(
    shape: EncoderShape,
    sequence_length: int,
    masks_per_sequence: int,
    use_pooler: bool = True,
    bag_of_words: bool = False,
    generator: EncoderShape | None = None,
    span_boundary: bool = False,
) -> Flops:
    """Count the FLOPs of the matrix products of one sequence.

    With h `hidden_dim`, e `embedding_dim`, i `intermediate_dim`, T `sequence_length`, V `vocabulary_size` and m
    `masks_per_sequence`, unless a family counts its blocks otherwise:

        block, per token     6 h² (query, key, value) + 2 h² (output) + 4 h i (feed-forward)
                             + 2 T h (scores) + 2 T h (their product with the values), with fewer keys than T
                             where attention is local and computed in blocks
        segments, per token  2 e · `num_segments`
        projection, per token  2 e h, of the embeddings, if there is one
        gather, per sequence 2 m T h
        masked LM, per m     2 e h (transform) + 2 e V
        pooler, per sequence 2 h² + 4 h (next sentence)
        bag of words, per sequence 2 e h (transform) + 2 e V
        span boundary, per m  2 h (2 h + 200) + 2 e h (transform) + 2 e V
        its gathers, per m   4 T h + 2 · 15 · 200

    A generator has its own blocks, segments and projection, and the masked LM and its gather use its h; then

        detector, per token  2 h² + 2 h, and the segments twice

    Padding and unfilled predictions count, since the device computes them. Not counted: element-wise operations
    (dropout, activations, softmax, layer norms, biases, losses), the token look-up, and the optimizer. The number of
    heads makes no difference.

    Source: Kaplan et al. 2020, section 2.1 (2 N per token for the forward pass, 6 N with the backward pass, for N
    weights of matrix products; arXiv:2001.08361), who count the attention scores but not their product with the values;
    Chowdhery et al. 2022, appendix B (6 N + 12 · layers · h · T; arXiv:2204.02311), who count both, as here. Both
    project every token to the vocabulary; here only the masked tokens are projected.
    """
    hidden = shape.hidden_dim
    filler = (generator or shape).hidden_dim  # width of the encoder that predicts the masked tokens
    span_masks = masks_per_sequence if span_boundary else 0
    span_input = 2 * hidden + SPAN_POSITION_DIM
    return Flops(
        encoder=_count_blocks(shape, sequence_length),
        embeddings=2 * sequence_length * shape.num_segments * shape.position_dim * (2 if generator else 1),
        pooler=(2 * hidden**2 if shape.has_dense_pooler else 0) + 4 * hidden if use_pooler else 0,
        gather=2 * masks_per_sequence * sequence_length * filler,
        masked_lm=2 * masks_per_sequence * shape.mlm_dim * (filler + shape.vocabulary_size),
        bag_of_words=2 * shape.embedding_dim * (filler + shape.vocabulary_size) if bag_of_words else 0,
        generator=_count_blocks(generator, sequence_length) if generator else 0,
        detector=sequence_length * (2 * hidden**2 + 2 * hidden) if generator else 0,
        span_boundary=2 * span_masks * (hidden * span_input + shape.embedding_dim * (hidden + shape.vocabulary_size)),
        span_gather=2 * span_masks * (2 * sequence_length * hidden + MAX_SPAN_TARGETS * SPAN_POSITION_DIM),
    )


def _count_blocks(shape: EncoderShape, sequence_length: int) -> int:
    blocks = (layer * shape.num_blocks // shape.num_layers for layer in range(shape.num_layers))
    keys = (shape.find_pattern(block).count_keys(sequence_length) for block in blocks)
    return sequence_length * (sum(map(shape.count_layer_flops, keys)) + shape.count_projection_flops())


# Check that a student can be distilled from a teacher; importable without Keras.

LAYER_SETTINGS = {"distillation": "attention_score_weight", "finetuning": "layer_epochs"}  # 0: no heads are compared


def check_teacher(
    student: Any,
    teacher: Any,
    hidden_state_weight: float,
    attention_score_weight: float = 0.0,
    layer_state_weight: float = 0.0,
    section: str = "distillation",
    feature_map_weight: float = 0.0,
    attention_map_weight: float = 0.0,
) -> None:
    """Raise ValueError unless student and teacher have the same vocabulary, and what is compared has one shape.

    Last hidden states are compared if they are equally wide, attention scores if there are as many heads, and layers if
    each of the student has one of the teacher. Maps are compared layer by layer, if there are as many layers.

    Args:
        student, teacher: shapes of encoders, or backbones.
        hidden_state_weight, attention_score_weight, layer_state_weight, feature_map_weight, attention_map_weight:
            weights of these losses.
        section: of the configuration that the error is about.
    """
    if student.vocabulary_size != teacher.vocabulary_size:
        raise ValueError(
            f"A student must have the vocabulary of its teacher. Received: {student.vocabulary_size} tokens, the "
            f"teacher's {teacher.vocabulary_size}."
        )
    if hidden_state_weight and student.hidden_dim != teacher.hidden_dim:
        raise ValueError(
            f"Hidden states must be of one width to be compared. Received: hidden_dim={student.hidden_dim}, the "
            f"teacher's {teacher.hidden_dim}. Set distillation.hidden_state_weight to 0, or give the student that "
            "width."
        )
    if attention_score_weight and student.num_heads != teacher.num_heads:
        raise ValueError(
            f"Attention scores must be of as many heads to be compared. Received: num_heads={student.num_heads}, the "
            f"teacher's {teacher.num_heads}. Set {section}.{LAYER_SETTINGS[section]} to 0, or give the student that "
            "number."
        )
    if (attention_score_weight or layer_state_weight) and teacher.num_layers % student.num_layers:
        raise ValueError(
            "A student whose layers are compared must have a number of layers that divides its teacher's. Received: "
            f"num_layers={student.num_layers}, the teacher's {teacher.num_layers}. Choose another student."
        )
    names = ["num_layers"] if feature_map_weight or attention_map_weight else []
    names += ["hidden_dim"] if feature_map_weight else []
    names += ["num_heads"] if attention_map_weight else []
    others = [
        f"{name}={getattr(student, name)}, the teacher's {getattr(teacher, name)}"
        for name in names
        if getattr(student, name) != getattr(teacher, name)
    ]
    if others:
        raise ValueError(
            "A student whose feature or attention maps are compared must have as many layers as its teacher, with maps "
            f"of one shape. Received: {', '.join(others)}. Give the student these, or set the weights to 0."
        )


def check_transfer(student: EncoderShape, settings: Any) -> None:
    """Raise ValueError unless the layers of a student can be taught before its predictions, in the steps of a run.

    Args:
        settings: the section `distillation`.
    """
    if settings.transfer == "auxiliary":
        return
    if student.num_blocks != student.num_layers or student.shared_parts:
        raise ValueError(
            f"`distillation.transfer: {settings.transfer}` must have a student whose layers share no weights. "
            f"Received: family={settings.student.family}. Choose another family."
        )
    if settings.total_steps <= student.num_layers * settings.layer_transfer_steps + settings.warmup_steps:
        raise ValueError(
            "`distillation.total_steps` must be above the steps of the transfer, of all layers, and of the warm-up "
            f"after it. Received: total_steps={settings.total_steps}, {student.num_layers} layers, "
            f"layer_transfer_steps={settings.layer_transfer_steps}, warmup_steps={settings.warmup_steps}. Raise "
            "total_steps."
        )


def map_layers(student: Any, teacher: Any) -> int:
    """Return g: layer m of a student is compared with layer g · m of its teacher, counted from 1; 0 is the embeddings.

    Source: Jiao et al. 2020 (TinyBERT), section 4.1, "uniform" mapping; arXiv:1909.10351.
    """
    return teacher.num_layers // student.num_layers


# What a student must have in common with the teacher whose embeddings and head it starts from.
EMBEDDING_WIDTHS = ("hidden_dim", "embedding_dim", "mlm_dim", "trigram_dim", "norm_bias", "head_bias")


def check_start(student: EncoderShape, teacher: EncoderShape, with_blocks: bool = True) -> None:
    """Raise ValueError unless a student can be initialised from layers of its teacher.

    Args:
        with_blocks: whether its blocks are, and not only its embeddings and its head.
    """
    others = [
        f"{name}={getattr(student, name, None)}, not {getattr(teacher, name, None)}"
        for name in (student.widths if with_blocks else EMBEDDING_WIDTHS)
        if getattr(student, name, None) != getattr(teacher, name, None)
    ]
    if with_blocks and student.num_blocks > teacher.num_layers:
        others.append(f"{student.num_blocks} blocks for {teacher.num_layers} layers")
    if others:
        raise ValueError(
            "A student that starts from its teacher must be as wide, and no deeper. Received: "
            f"{', '.join(others)}. Change distillation.student, or set distillation.start to "
            f"{'embeddings or random' if with_blocks else 'random'}."
        )

"""Check that a student can be distilled from a teacher; importable without Keras."""

from typing import Any

from keras_bert_flow.layers.shape import EncoderShape

WIDTHS = ("hidden_dim", "num_heads", "intermediate_dim", "embedding_dim")


def check_teacher(student: Any, teacher: Any, hidden_state_weight: float) -> None:
    """Raise ValueError unless student and teacher have the same vocabulary, and width if hidden states are compared.

    Args:
        student, teacher: shapes of encoders, or backbones.
        hidden_state_weight: weight of that loss.
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


def check_start(student: EncoderShape, teacher: EncoderShape) -> None:
    """Raise ValueError unless a student can be initialised from layers of its teacher."""
    others = [
        f"{name}={getattr(student, name)}, not {getattr(teacher, name)}"
        for name in WIDTHS
        if getattr(student, name) != getattr(teacher, name)
    ]
    if student.num_blocks > teacher.num_layers:
        others.append(f"{student.num_blocks} blocks for {teacher.num_layers} layers")
    if others:
        raise ValueError(
            "A student that starts from its teacher must be as wide, and no deeper. Received: "
            f"{', '.join(others)}. Change distillation.student, or set distillation.start to random."
        )

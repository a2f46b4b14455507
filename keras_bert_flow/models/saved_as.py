"""How a model is saved in a model directory; known without Keras."""

from dataclasses import dataclass, field

CLASSES = ("num_classes", "labels")
POOLING = ("pooling", "normalize")
TEXT_POOLING = ("pooling",)  # of heads for whole texts


@dataclass(frozen=True)
class SavedAs:
    """What Hugging Face calls a model and the tensors of its head.

    Attributes:
        architecture: the class of `transformers`.
        noun: what to call the head in a message.
        head: our layers → Hugging Face's, without those of the encoder.
        use_pooler: whether the model has one; None where that is as in the directory.
        outputs: fewest and most outputs of the head; several heads of Hugging Face's have one name.
        problem_type: of the three in which `BertForSequenceClassification` computes one thing and means another.
        options: arguments of the constructor that a user may give beside those of every model.
    """

    architecture: str
    noun: str
    head: dict[str, str] = field(default_factory=dict)
    use_pooler: bool | None = True
    outputs: tuple[int, float] = (1, float("inf"))
    problem_type: str | None = None
    options: tuple[str, ...] = ()

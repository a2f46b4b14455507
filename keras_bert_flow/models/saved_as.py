"""How a model is saved in a model directory; known without Keras."""

from dataclasses import dataclass, field

CLASSES = ("num_classes", "labels")
POOLING = ("pooling", "normalize")
TEXT_POOLING = ("pooling",)  # of heads for whole texts

# Heads: our layers → what Hugging Face calls them in BERT.
CLASSIFIER_HEAD = {"classifier": "classifier"}  # see `models.with_head.classify`
MASKED_LM_HEAD = {
    "mlm_transform/dense": "cls.predictions.transform.dense",
    "mlm_transform/layer_norm": "cls.predictions.transform.LayerNorm",
    "mlm": "cls.predictions",
}
# Of a head that has a table of its own for its guesses; `transformers` then adds the bias beside that table.
MASKED_LM_TABLE = dict.fromkeys(("mlm_decoder", "mlm"), "cls.predictions.decoder")
REPLACED_TOKENS_HEAD = {
    "replaced_dense": "discriminator_predictions.dense",
    "replaced": "discriminator_predictions.dense_prediction",
}
WORDS_TRANSFORM = {  # of `heads.text_pooling.transform_mean`; `transformers` leaves them out, and says so
    "words_dense": "cls.words.transform.dense",
    "words_norm": "cls.words.transform.LayerNorm",
}
WORDS_HEAD = WORDS_TRANSFORM | {"words": "cls.words"}


@dataclass(frozen=True)
class SavedAs:
    """What Hugging Face calls a model and the tensors of its head.

    Attributes:
        architecture: the class of `transformers` without the family: `ForMaskedLM`.
        noun: what to call the head in a message.
        head: our layers → Hugging Face's in BERT, without those of the encoder.
        use_pooler: whether the model has one; None where that is as in the directory.
        outputs: fewest and most outputs of the head; several heads of Hugging Face's have one name.
        problem_type: of the three in which `ForSequenceClassification` computes one thing and means another.
        options: arguments of the constructor that a user may give beside those of every model.
        is_of_task: whether the head is for a task, and begins anew where a directory has none.
    """

    architecture: str
    noun: str
    head: dict[str, str] = field(default_factory=dict)
    use_pooler: bool | None = True
    outputs: tuple[int, float] = (1, float("inf"))
    problem_type: str | None = None
    options: tuple[str, ...] = ()
    is_of_task: bool = True

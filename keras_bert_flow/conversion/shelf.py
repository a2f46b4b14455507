"""List the models that a model directory can hold, and what Hugging Face calls each of them."""

from dataclasses import dataclass, field, replace
from typing import Any

from keras_bert_flow.conversion import huggingface as hf
from keras_bert_flow.conversion.tensor_file import StoredTensors
from keras_bert_flow.models.backbone import BertBackbone
from keras_bert_flow.models.bag_of_words import BagOfWordsPretrainer
from keras_bert_flow.models.classifier import BertTextClassifier
from keras_bert_flow.models.embedder import BertTextEmbedder
from keras_bert_flow.models.masked_lm import BertMaskedLM
from keras_bert_flow.models.multi_label_classifier import BertMultiLabelClassifier
from keras_bert_flow.models.multiple_choice import BertMultipleChoice
from keras_bert_flow.models.pair_embedder import BertPairEmbedder
from keras_bert_flow.models.poolings import BAG_OF_WORDS
from keras_bert_flow.models.pretrainer import BertPretrainer
from keras_bert_flow.models.question_answerer import BertQuestionAnswerer
from keras_bert_flow.models.regressor import BertTextRegressor
from keras_bert_flow.models.token_classifier import BertTokenClassifier


@dataclass(frozen=True)
class Place:
    """Where a model stands among Hugging Face's.

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


CLASSES = ("num_classes", "labels")
POOLING = ("pooling", "normalize")
TEXT_POOLING = ("pooling",)  # of heads for whole texts
SEQUENCES = "BertForSequenceClassification"
SHELF = {
    BertBackbone: Place("BertModel", "encoder", use_pooler=None),
    BertMaskedLM: Place("BertForMaskedLM", "masked LM", hf.MASKED_LM_HEAD, use_pooler=False),
    BertPretrainer: Place("BertForPreTraining", "pre-trainer", hf.PRETRAINING_HEADS),
    BertTextClassifier: Place(
        SEQUENCES,
        "classifier",
        hf.CLASSIFIER_HEAD,
        outputs=(2, float("inf")),
        problem_type="single_label_classification",
        options=CLASSES + TEXT_POOLING,
    ),
    BertTextRegressor: Place(
        SEQUENCES,
        "regressor",
        hf.CLASSIFIER_HEAD,
        outputs=(1, 1),
        problem_type="regression",
        options=TEXT_POOLING,
    ),
    BertMultiLabelClassifier: Place(
        SEQUENCES,
        "multi-label classifier",
        hf.CLASSIFIER_HEAD,
        problem_type="multi_label_classification",
        options=CLASSES + TEXT_POOLING,
    ),
    BertTokenClassifier: Place(
        "BertForTokenClassification", "token classifier", hf.CLASSIFIER_HEAD, use_pooler=False, options=CLASSES
    ),
    BertQuestionAnswerer: Place(
        "BertForQuestionAnswering", "question answerer", hf.SPAN_HEAD, use_pooler=False, outputs=(2, 2)
    ),
    BertMultipleChoice: Place("BertForMultipleChoice", "chooser", hf.CLASSIFIER_HEAD, outputs=(1, 1)),
    BertTextEmbedder: Place("BertModel", "embedder", use_pooler=False, options=POOLING),
    BertPairEmbedder: Place("BertModel", "embedder", use_pooler=False, options=("objective", "scale", *POOLING)),
}
KINDS = {
    "classification": BertTextClassifier,
    "regression": BertTextRegressor,
    "multi_label": BertMultiLabelClassifier,
    "token_classification": BertTokenClassifier,
    "question_answering": BertQuestionAnswerer,
    "multiple_choice": BertMultipleChoice,
    "sentence_embedding": BertPairEmbedder,
}


def find_place(model_class: type) -> Place:
    """Return the place of a class of models.

    Raises:
        TypeError: a model directory holds none such.
    """
    if model_class not in SHELF:
        names = ", ".join(kind.__name__ for kind in SHELF)
        raise TypeError(f"A model directory holds one of {names}. Received: {model_class.__name__}.")
    return SHELF[model_class]


def place_of(model) -> Place:
    """Return the place of a model, with all heads that it has; that of a `BagOfWordsPretrainer` is of its inner model.

    Raises:
        TypeError: a model directory holds none such.
    """
    if isinstance(model, BagOfWordsPretrainer):
        place = find_place(type(model.pretrainer))
        return replace(place, head=place.head | hf.WORDS_HEAD)
    place = find_place(type(model))
    if getattr(model, "pooling", None) == BAG_OF_WORDS:
        return replace(place, head=place.head | hf.WORDS_TRANSFORM)
    return place


def has_head(place: Place, config: dict[str, Any], tensors: StoredTensors) -> bool:
    """Say whether a directory holds the head of a task, not one of another task by the same name."""
    if not place.head:
        return True
    theirs = config.get("architectures") or ()
    namesakes = {other.architecture for other in SHELF.values() if other.head == place.head}
    if place.architecture not in theirs and namesakes & set(theirs):
        return False
    if place.problem_type is not None and config.get("problem_type") not in (None, place.problem_type):
        return False
    kernels = [f"{name}.weight" for name in place.head.values()]
    fewest, most = place.outputs
    return all(fewest <= (*tensors.shapes.get(kernel, ()), 0)[0] <= most for kernel in kernels)

"""Model classes by kind of task and by objective, and how each is saved in a model directory.

Importable without Keras: a class is loaded when it is asked for.
"""

from dataclasses import dataclass, field
from typing import Any

from keras_bert_flow.by_name import Registry

# kind of task, as in `Task.kind` → model class
TASK_HEADS: Registry[Any] = Registry(
    "The kind of a task",
    {
        "classification": "keras_bert_flow.models.heads.classifiers:TextClassifier",
        "regression": "keras_bert_flow.models.heads.classifiers:TextRegressor",
        "multi_label": "keras_bert_flow.models.heads.classifiers:MultiLabelClassifier",
        "token_classification": "keras_bert_flow.models.heads.classifiers:TokenClassifier",
        "question_answering": "keras_bert_flow.models.heads.choosers:QuestionAnswerer",
        "multiple_choice": "keras_bert_flow.models.heads.choosers:MultipleChoice",
        "sentence_embedding": "keras_bert_flow.models.heads.embedders:PairEmbedder",
    },
)
# objective, one of `text.objectives.OBJECTIVES` → model class
PRETRAINERS: Registry[Any] = Registry(
    "An objective",
    {
        "mlm": "keras_bert_flow.models.pretraining.masked_lm:MaskedLM",
        "mlm_nsp": "keras_bert_flow.models.pretraining.masked_lm:BertPretrainer",
        "mlm_sop": "keras_bert_flow.models.pretraining.masked_lm:BertPretrainer",
        "mlm_sbo": "keras_bert_flow.models.pretraining.span_boundary:SpanBoundaryPretrainer",
        "rtd": "keras_bert_flow.models.pretraining.replaced_tokens:ReplacedTokenPretrainer",
    },
)

CLASSES = ("num_classes", "labels")
POOLING = ("pooling", "normalize")
TEXT_POOLING = ("pooling",)  # of heads for whole texts

# Heads: our layers → their names in Hugging Face's BERT.
CLASSIFIER_HEAD = {"classifier": "classifier"}  # see `models.with_head.classify`
MASKED_LM_HEAD = {
    "mlm_transform/dense": "cls.predictions.transform.dense",
    "mlm_transform/layer_norm": "cls.predictions.transform.LayerNorm",
    "mlm": "cls.predictions",
}
MASKED_LM_TRANSFORM = (MASKED_LM_HEAD["mlm_transform/dense"], MASKED_LM_HEAD["mlm_transform/layer_norm"])
# Of a head of a task that transforms hidden states as the masked-LM head does, by the same names.
PREDICTION_HEAD = dict(zip(("head/dense", "head/layer_norm"), MASKED_LM_TRANSFORM, strict=True))
# Of a masked-LM head with untied output weights; `transformers` then puts the bias in the same layer.
MASKED_LM_TABLE = dict.fromkeys(("mlm_decoder", "mlm"), "cls.predictions.decoder")
# Of a masked-LM head that is wider than the token embeddings: its own matrix for the other values. BERT has none.
MASKED_LM_EXTENSION = {"mlm_extension": "cls.predictions.extension"}
REPLACED_TOKENS_HEAD = {
    "replaced_dense": "discriminator_predictions.dense",
    "replaced": "discriminator_predictions.dense_prediction",
}
WORDS_TRANSFORM = {  # of `heads.classifiers.transform_mean`; `transformers` skips them with a warning
    "words_dense": "cls.words.transform.dense",
    "words_norm": "cls.words.transform.LayerNorm",
}
WORDS_HEAD = WORDS_TRANSFORM | {"words": "cls.words"}
PAIRS_HEAD = {"nsp": "cls.seq_relationship"}
SPAN_HEAD = {"span": "qa_outputs"}
HEADS = (
    CLASSIFIER_HEAD,
    MASKED_LM_HEAD,
    MASKED_LM_TABLE,
    MASKED_LM_EXTENSION,
    REPLACED_TOKENS_HEAD,
    WORDS_HEAD,
    PAIRS_HEAD,
    SPAN_HEAD,
)
OUTPUT_BIASES = (MASKED_LM_HEAD["mlm"], WORDS_HEAD["words"])  # layers that are only a bias, one per piece


@dataclass(frozen=True)
class SavedAs:
    """Hugging Face's names of a model and of the tensors of its head.

    Attributes:
        architecture: the class of `transformers` without the family: `ForMaskedLM`.
        noun: name of the head in messages.
        head: our layers → Hugging Face's names in BERT, without the layers of the encoder.
        use_pooler: whether the model has a pooler; None: as in the model directory.
        outputs: minimum and maximum number of outputs of the head, since several of Hugging Face's heads share a name.
        problem_type: of `ForSequenceClassification`: which of its three tasks, whose computation is the same.
        options: constructor arguments that a user may give in addition to those of every model.
        is_of_task: whether the head is for a task, and is newly initialised if a directory has none.
    """

    architecture: str
    noun: str
    head: dict[str, str] = field(default_factory=dict)
    use_pooler: bool | None = True
    outputs: tuple[int, float] = (1, float("inf"))
    problem_type: str | None = None
    options: tuple[str, ...] = ()
    is_of_task: bool = True


# Names of the poolings of heads for whole texts.

CLS, MEAN, BAG_OF_WORDS = "cls", "mean", "bag_of_words"
TEXT_POOLINGS = (CLS, MEAN, BAG_OF_WORDS)

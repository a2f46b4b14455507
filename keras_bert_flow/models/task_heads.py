"""Find the model of a kind of task."""

from importlib import import_module

# kind of task → model, loaded when it is asked for
TASK_HEADS = {
    "classification": "keras_bert_flow.models.classifier:BertTextClassifier",
    "regression": "keras_bert_flow.models.regressor:BertTextRegressor",
    "multi_label": "keras_bert_flow.models.multi_label_classifier:BertMultiLabelClassifier",
    "token_classification": "keras_bert_flow.models.token_classifier:BertTokenClassifier",
    "question_answering": "keras_bert_flow.models.question_answerer:BertQuestionAnswerer",
    "multiple_choice": "keras_bert_flow.models.multiple_choice:BertMultipleChoice",
    "sentence_embedding": "keras_bert_flow.models.pair_embedder:BertPairEmbedder",
}


def find_task_head(kind: str) -> type:
    """Return the class of the model of a kind of task, as `Task.kind`.

    Raises:
        ValueError: there is no such kind.
    """
    if kind not in TASK_HEADS:
        raise ValueError(f"The kind of a task must be one of {', '.join(TASK_HEADS)}. Received: {kind!r}.")
    module, name = TASK_HEADS[kind].split(":")
    return getattr(import_module(module), name)

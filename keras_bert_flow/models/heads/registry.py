"""Registry of task models by kind of task."""

from typing import Any

from keras_bert_flow.by_name import load_by_name

# kind of task → model, loaded on demand
TASK_HEADS = {
    "classification": "keras_bert_flow.models.heads.classifiers:TextClassifier",
    "regression": "keras_bert_flow.models.heads.classifiers:TextRegressor",
    "multi_label": "keras_bert_flow.models.heads.classifiers:MultiLabelClassifier",
    "token_classification": "keras_bert_flow.models.heads.classifiers:TokenClassifier",
    "question_answering": "keras_bert_flow.models.heads.choosers:QuestionAnswerer",
    "multiple_choice": "keras_bert_flow.models.heads.choosers:MultipleChoice",
    "sentence_embedding": "keras_bert_flow.models.heads.embedders:PairEmbedder",
}


def find_task_head(kind: str) -> Any:
    """Return the model class for a kind of task, as in `Task.kind`.

    Raises:
        ValueError: there is no such kind.
    """
    if kind not in TASK_HEADS:
        raise ValueError(f"The kind of a task must be one of {', '.join(TASK_HEADS)}. Received: {kind!r}.")
    return load_by_name(TASK_HEADS[kind])

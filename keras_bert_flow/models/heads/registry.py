"""Registry of task models by kind of task."""

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

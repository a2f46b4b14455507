"""Train and evaluate BERT models from raw text, on any Keras backend.

Public names are loaded on first use (PEP 562), so importing the package imports no backend. Importing it is enough for
`keras.saving.load_model` to find the classes of a saved model.
"""

import importlib

from keras_bert_flow.registration import register_with_keras

_HOMES = {
    "BagOfWordsPretrainer": "models.pretraining.bag_of_words",
    "Backbone": "models.backbone",
    "BertBackbone": "models.backbone",
    "Distiller": "models.pretraining.distiller",
    "MaskedLM": "models.pretraining.masked_lm",
    "MultiLabelClassifier": "models.heads.classifiers",
    "MultipleChoice": "models.heads.choosers",
    "PairEmbedder": "models.heads.embedders",
    "BertPretrainer": "models.pretraining.masked_lm",
    "ReplacedTokenDetector": "models.pretraining.replaced_tokens",
    "ReplacedTokenPretrainer": "models.pretraining.replaced_tokens",
    "QuestionAnswerer": "models.heads.choosers",
    "TextClassifier": "models.heads.classifiers",
    "TextPreprocessor": "data.text_preprocessor",
    "TextEmbedder": "models.heads.embedders",
    "TextRegressor": "models.heads.classifiers",
    "Tokenizer": "text.tokenizers.tokenizer",
    "TokenClassifier": "models.heads.classifiers",
    "Embedder": "prediction.embedding",
    "PipelineConfig": "config.pipeline",
    "PretrainingRecords": "data.pretraining_records",
    "SemanticSearch": "prediction.search",
    "TagLoss": "models.losses",
    "WarmupDecay": "training.optimizers.schedules",
    "WordPieceTokenizer": "text.tokenizers.wordpiece",
    "adamw": "training.optimizers.adam",
    "distill": "training.distillation",
    "export_model": "export.export_model",
    "evaluate_minimal_pairs": "evaluation.minimal_pairs",
    "from_keras_hub": "conversion.keras_hub_models",
    "find_model": "results.choosing",
    "finetune": "training.finetuning.finetune",
    "learn_vocabulary": "text.vocabulary.learner",
    "load": "prediction.load",
    "load_config": "config.loading",
    "load_task_model": "conversion.model_directory",
    "make_task": "tasks.registry",
    "normalize_text": "text.tokenizers.normalization",
    "pack_rows": "data.packing",
    "predict_features": "data.tasks",
    "pretrain": "training.pretraining.pretrain",
    "pretraining_dataset": "data.pretraining",
    "read_table": "tasks.formats.tables",
    "split_sentences": "text.corpus.documents",
    "task_dataset": "data.tasks",
    "to_keras_hub": "conversion.keras_hub_models",
    "write_evaluation": "evaluation.evaluate",
}

__all__ = sorted(_HOMES)

register_with_keras()


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'keras_bert_flow' has no attribute '{name}'. Public names: {', '.join(__all__)}.")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

"""Train and evaluate BERT models from raw text, on any Keras backend.

Public names are loaded on first use (PEP 562), so importing the package imports neither Keras nor a backend. Importing
it is enough for `keras.saving.load_model` to find the classes of a saved model.
"""

import importlib
import sys

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
    "SpanBoundaryPretrainer": "models.pretraining.span_boundary",
    "QuestionAnswerer": "models.heads.choosers",
    "TextClassifier": "models.heads.classifiers",
    "TextPreprocessor": "data.text_preprocessor",
    "TextEmbedder": "models.heads.embedders",
    "TextRegressor": "models.heads.classifiers",
    "Tokenizer": "text.tokenizers.tokenizer",
    "TokenClassifier": "models.heads.classifiers",
    "Embedder": "prediction.predictors",
    "PipelineConfig": "config.pipeline",
    "PretrainingRecords": "data.pretraining_records",
    "SemanticSearch": "prediction.search",
    "TagLoss": "models.losses",
    "WarmupDecay": "training.optimizers.schedules",
    "WordPieceTokenizer": "text.tokenizers.wordpiece",
    "adamw": "training.optimizers.adam",
    "augment": "training.augmentation",
    "distill": "training.distillation",
    "export_model": "export.export_model",
    "evaluate_minimal_pairs": "evaluation.minimal_pairs",
    "from_keras_hub": "conversion.keras_hub_models",
    "find_model": "results.choosing",
    "finetune": "training.finetuning.finetune",
    "learn_vocabulary": "text.learner",
    "load": "prediction.load",
    "load_config": "config.loading",
    "load_task_model": "conversion.model_directory",
    "make_task": "tasks.registry",
    "normalize_text": "text.tokenizers.normalization",
    "pack_rows": "data.text_preprocessor",
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


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module 'keras_bert_flow' has no attribute '{name}'. Public names: {', '.join(__all__)}.")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__


# Register the classes of saved models with Keras by name.
#
# `keras.saving.load_model` looks up `keras_bert_flow>TextClassifier` among the registered classes, but a class
# registers itself only when its module is imported. As soon as Keras is imported, each name gets a stand-in, whose
# `from_config` imports the module and delegates to the class.

# module → classes that it registers with Keras. Kept by hand, and complete by a test. Finding the decorated classes
# means reading every source whenever Keras is imported (40 ms from a warm local disk with a regular expression, 4 s
# with `ast`), since Keras looks names up in a plain dict, which cannot be filled when a name is missing.
_REGISTERED = {
    "distribution.tensorflow_cluster": ("ReplicatedLoss",),
    "layers.attention": ("QueryKeyValue", "QueryKeyAndValue", "MultiHeadSelfAttention"),
    "layers.dense": ("Dropout", "OutputDense", "TokenEmbedding", "Dense", "RmsNorm"),
    "layers.disentangled": ("DisentangledEmbeddings", "RelativePositions", "Convolution", "DisentangledBlock"),
    "layers.embeddings": ("BertEmbeddings",),
    "layers.encoder": ("MergeTexts", "ChoiceScores", "SplitTexts", "EncoderBlock", "ScoredBlock"),
    "layers.mobilebert": ("NoNorm", "TrigramEmbeddings", "FeedForward", "BottleneckBlock"),
    "layers.prenorm": ("PreNormBlock",),
    "layers.masks": ("AttentionBias", "UnpadInputs", "PadInputs"),
    "layers.heads": (
        "Pooler",
        "MaskedTokenTransform",
        "PredictionHead",
        "OutputBias",
        "SpanScores",
        "TokenPooling",
        "ReplaceTokens",
        "Verdicts",
    ),
    "models.backbone": ("Backbone", "BertBackbone"),
    "models.defaults": (
        "OptimizerWithExclusions",
        "DenseAdamW",
        "FusedAdamW",
        "ExcludingAdamW",
        "TokenLoss",
        "TokenAccuracy",
    ),
    "models.heads.choosers": ("MultipleChoice", "QuestionAnswerer"),
    "models.heads.classifiers": ("TokenClassifier", "TextClassifier", "MultiLabelClassifier", "TextRegressor"),
    "models.heads.embedders": ("TextEmbedder", "PairEmbedder"),
    "models.losses": (
        "SquaredError",
        "TagLoss",
        "TagAccuracy",
        "LabelLoss",
        "LabelAccuracy",
        "BinaryTokenLoss",
        "BinaryTokenAccuracy",
        "CosineLoss",
        "CosineError",
        "ContrastiveLoss",
        "ContrastiveAccuracy",
    ),
    "models.pretraining.bag_of_words": ("BagOfWordsPretrainer",),
    "models.pretraining.distiller": (
        "SoftTargetLosses",
        "HiddenStateLosses",
        "AttentionScoreLosses",
        "LayerStateLosses",
        "FeatureMapLosses",
        "AttentionMapLosses",
        "Distiller",
    ),
    "models.pretraining.masked_lm": ("MaskedLM", "BertPretrainer"),
    "models.pretraining.replaced_tokens": ("ReplacedTokenDetector", "ReplacedTokenPretrainer"),
    "models.pretraining.span_boundary": ("SpanBoundaryTransform", "SpanBoundaryPretrainer"),
    "training.optimizers.adam": ("BertAdam", "Lamb", "StableAdamW", "Muon"),
    "training.optimizers.guard": ("GuardedOptimizer",),
    "training.optimizers.schedules": ("WarmupDecay", "PacedSteps", "StagedWarmup", "AccumulatedSteps"),
}
# registered name → name of the class, where saved files have an earlier one
_RENAMED = {"Verdicts": "DetectionLogits"}


class _StandIn:
    """Base class of the placeholders for classes not yet imported; Keras uses only these two methods."""

    home: str

    @classmethod
    def from_config(cls, config):
        return getattr(importlib.import_module(cls.home), _RENAMED.get(cls.__name__, cls.__name__)).from_config(config)

    def get_config(self):
        raise NotImplementedError


class _KerasFinder:
    """Import finder that leaves finding Keras to the others: a backend for it before, the stand-ins once it is there.

    Not an `importlib.abc.MetaPathFinder`: that module imports others, before `kbf` has cleaned the search path.
    """

    def find_spec(self, fullname, path, target=None):
        if fullname != "keras":
            return None
        others = (finder for finder in sys.meta_path if finder is not self and hasattr(finder, "find_spec"))
        spec = next((found for finder in others if (found := finder.find_spec(fullname, path, target))), None)
        if spec is not None and hasattr(spec.loader, "exec_module"):
            # This replaces a method, and `hasattr` does not narrow the type for mypy.
            exec_module = spec.loader.exec_module  # type: ignore[union-attr]

            def exec_and_register(module):
                # Imported here, as it imports others; see the class.
                importlib.import_module(f"{__name__}.installed").take_installed_backend()
                exec_module(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                _register_stand_ins()

            spec.loader.exec_module = exec_and_register  # type: ignore[method-assign, union-attr]
        return spec


def _register_stand_ins() -> None:
    """Register a stand-in for each class that is not registered yet; Keras must have been imported."""
    registered = sys.modules["keras"].saving.get_custom_objects()
    for module, names in _REGISTERED.items():
        for name in names:
            home = f"{__name__}.{module}"
            registered.setdefault(f"{__name__}>{name}", type(name, (_StandIn,), {"home": home, "__module__": home}))


if hasattr(sys.modules.get("keras"), "saving"):
    _register_stand_ins()
elif not any(type(finder).__name__ == _KerasFinder.__name__ for finder in sys.meta_path):  # this module may be reloaded
    sys.meta_path.insert(0, _KerasFinder())

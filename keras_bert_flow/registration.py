"""Register the classes of saved models with Keras by name, without importing Keras or a backend here.

`keras.saving.load_model` looks up `keras_bert_flow>TextClassifier` among the registered classes, but a class
registers itself only when its module is imported. As soon as Keras is imported, each name gets a stand-in, whose
`from_config` imports the module and delegates to the class.
"""

import importlib
import sys

PACKAGE = "keras_bert_flow"

# module → classes that it registers with Keras. Kept by hand, and complete by a test. Finding the decorated classes
# means reading every source whenever Keras is imported (40 ms from a warm local disk with a regular expression, 4 s
# with `ast`), since Keras looks names up in a plain dict, which cannot be filled when a name is missing.
REGISTERED = {
    "distribution.tensorflow_cluster": ("ReplicatedLoss",),
    "layers.attention": ("QueryKeyValue", "MultiHeadSelfAttention"),
    "layers.dense": ("Dropout", "OutputDense", "TokenEmbedding", "Dense"),
    "layers.embeddings": ("BertEmbeddings",),
    "layers.encoder": ("MergeTexts", "ChoiceScores", "SplitTexts", "EncoderBlock"),
    "layers.masks": ("AttentionBias", "UnpadInputs", "PadInputs"),
    "layers.heads": (
        "Pooler",
        "MaskedTokenTransform",
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
    "models.pretraining.distiller": ("SoftTargetLosses", "HiddenStateLosses", "Distiller"),
    "models.pretraining.masked_lm": ("MaskedLM", "BertPretrainer"),
    "models.pretraining.replaced_tokens": ("ReplacedTokenDetector", "ReplacedTokenPretrainer"),
    "training.optimizers.adam": ("BertAdam", "Lamb", "Muon"),
    "training.optimizers.guard": ("GuardedOptimizer",),
    "training.optimizers.schedules": ("WarmupDecay", "PacedSteps", "AccumulatedSteps"),
}
# registered name → name of the class, where saved files have an earlier one
RENAMED = {"Verdicts": "DetectionLogits"}


class _StandIn:
    """Base class of the placeholders for classes not yet imported; Keras uses only these two methods."""

    home: str

    @classmethod
    def from_config(cls, config):
        return getattr(importlib.import_module(cls.home), RENAMED.get(cls.__name__, cls.__name__)).from_config(config)

    def get_config(self):
        raise NotImplementedError


def register_stand_ins() -> None:
    """Register a stand-in for each class that is not registered yet; Keras must have been imported."""
    registered = sys.modules["keras"].saving.get_custom_objects()
    for module, names in REGISTERED.items():
        for name in names:
            stand_in = type(name, (_StandIn,), {"home": f"{PACKAGE}.{module}", "__module__": f"{PACKAGE}.{module}"})
            registered.setdefault(f"{PACKAGE}>{name}", stand_in)


def register_with_keras() -> None:
    """Register stand-ins now, or when Keras is imported."""
    if hasattr(sys.modules.get("keras"), "saving"):
        register_stand_ins()
    elif not any(isinstance(finder, _KerasFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _KerasFinder())


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
            loader = spec.loader
            # This replaces a method, and `hasattr` does not narrow the type for mypy.
            loader.exec_module = self._then_register(loader.exec_module)  # type: ignore[method-assign, union-attr]
        return spec

    def _then_register(self, exec_module):
        def exec_and_register(module):
            # Imported here, as it imports others; see the class.
            importlib.import_module(f"{PACKAGE}.installed").take_installed_backend()
            exec_module(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
            register_stand_ins()

        return exec_and_register

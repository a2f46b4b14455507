"""Convert in-memory models to KerasHub models, the successor of keras-nlp, and back, including their heads."""

import tempfile
from pathlib import Path

import keras

from keras_bert_flow.conversion.convert import convert
from keras_bert_flow.conversion.directory_files import read_json
from keras_bert_flow.conversion.model_directory import load_model, save_model_directory
from keras_bert_flow.installed import check_installed
from keras_bert_flow.models.backbone import Backbone
from keras_bert_flow.models.heads.classifiers import MultiLabelClassifier, TextClassifier
from keras_bert_flow.models.heads.embedders import TextEmbedder
from keras_bert_flow.models.pretraining.masked_lm import MaskedLM

PACKAGE, FORMAT = "keras_hub", "kerashub"
CONFIG, TASK = "config.json", "task.json"


def to_keras_hub(
    model: keras.Model,
    vocabulary_path: str | Path | None = None,
    cased: bool = False,
    gelu: str | None = None,
    mlm_gelu: str | None = None,
    mlm_epsilon: float | None = None,
) -> keras.Model:
    """Convert one of our models to a KerasHub model with the same weights, through a temporary preset.

    Its outputs are the same within rounding. An exact GELU in the encoder of a BERT, ALBERT or ELECTRA cannot be kept:
    KerasHub's class builds the tanh form into internal layers.

    Args:
        model: a `Backbone`, `MaskedLM`, `TextClassifier`, `MultiLabelClassifier`, `TextRegressor` or `TextEmbedder`.
        vocabulary_path: a vocab.txt, for a preprocessor that takes texts of up to as many tokens as the model has
            positions; without it the model takes token ids.
        cased: whether the vocabulary keeps case.
        gelu, mlm_gelu, mlm_epsilon: changes of the result's arithmetic, which accept that its outputs differ; see
            `arithmetic`.
    Raises:
        ValueError: KerasHub is not installed, or has no class that computes the model.
        TypeError: `model` is not one of ours.
    Example:
        >>> backbone = kbf.BertBackbone.from_size("tiny", vocabulary_size=100, hidden_act="gelu_tanh")
        >>> theirs = kbf.to_keras_hub(backbone)
        >>> type(theirs).__name__
        'BertBackbone'
    """
    check_installed([PACKAGE])
    with tempfile.TemporaryDirectory() as folder:
        ours, preset = Path(folder, "ours"), Path(folder, "preset")
        save_model_directory(model, ours, vocabulary_path, cased)
        convert(ours, preset, FORMAT, gelu=gelu, mlm_gelu=mlm_gelu, mlm_epsilon=mlm_epsilon)
        import keras_hub

        described = read_json(preset / (TASK if (preset / TASK).is_file() else CONFIG))
        kind = getattr(keras_hub.models, described["class_name"])
        return kind.from_preset(str(preset), dtype=getattr(model, "backbone", model).dtype_policy.name)


def from_keras_hub(model: keras.Model, **overrides) -> keras.Model:
    """Convert a KerasHub backbone or task to one of our models with the same weights, through a temporary preset.

    Args:
        overrides: as for `from_preset`: dropout rates, `dtype`, `name`, and `labels` of a classifier.
    Raises:
        ValueError: KerasHub is not installed, or none of our models computes what `model` does.
        TypeError: `model` is not one of KerasHub's.
    Example:
        >>> backbone = kbf.BertBackbone.from_size("tiny", vocabulary_size=100, hidden_act="gelu_tanh")
        >>> ours = kbf.from_keras_hub(kbf.to_keras_hub(backbone))
        >>> ours.count_params() == backbone.count_params()
        True
    """
    check_installed([PACKAGE])
    import keras_hub

    if not isinstance(model, keras_hub.models.Backbone | keras_hub.models.Task):
        raise TypeError(f"A model must be a Backbone or a Task of KerasHub. Received: {type(model).__name__}.")
    with tempfile.TemporaryDirectory() as folder:
        preset, ours = Path(folder, "preset"), Path(folder, "ours")
        model.save_to_preset(str(preset))
        convert(preset, ours, source=FORMAT)
        return load_model(_find_class(preset, ours), ours, **{"dtype": model.dtype_policy.name} | overrides)


def _find_class(preset: Path, ours: Path) -> type[keras.Model]:
    """Return the class of ours for a preset of KerasHub, of which `ours` is the converted directory."""
    name = read_json(preset / TASK)["class_name"] if (preset / TASK).is_file() else ""
    if name.endswith("MaskedLM"):
        return MaskedLM
    if name.endswith("TextEmbedder"):
        return TextEmbedder
    has_sigmoid = read_json(ours / CONFIG).get("problem_type") == MultiLabelClassifier.saved_as.problem_type
    return (MultiLabelClassifier if has_sigmoid else TextClassifier) if name else Backbone

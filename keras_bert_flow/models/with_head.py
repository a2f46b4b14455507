"""Share what every model with a head does: defaults of `compile`, configuration, model directories."""

from typing import Any

import keras

from keras_bert_flow.backends.batches import take_batches
from keras_bert_flow.layers.dropout import Dropout
from keras_bert_flow.layers.initializers import normal
from keras_bert_flow.models.backbone import INPUT_NAMES, Backbone
from keras_bert_flow.models.decay_exclusions import OptimizerWithExclusions, list_undecayed
from keras_bert_flow.models.defaults import make_adamw
from keras_bert_flow.models.frozen import FROZEN, describe_frozen, freeze
from keras_bert_flow.models.preset import load_preset, save_preset
from keras_bert_flow.models.quantized import QUANTIZED, describe_quantized, quantize

COMPILES_SHAPES = keras.backend.backend() != "torch"  # each shape takes its time in training, where it is new


def compiles_shapes(model: keras.Model) -> bool:
    """Return whether each new shape takes its time in prediction: on jax, and on TensorFlow with XLA.

    Without it TensorFlow makes a graph of the first shape, one of any number of rows and one of any width as well.
    """
    return keras.backend.backend() == "jax" or (keras.backend.backend() == "tensorflow" and bool(model.jit_compile))


class ModelWithHead(keras.Model):
    """Join an encoder and a head into a functional model; abstract.

    A model of this kind is final. It says with `make_losses` and `make_metrics` what `compile()` takes where it is
    given none, and adds the arguments of its own constructor to `get_config`.

    Not an `abc.ABC`, because Keras instantiates every class between `keras.Model` and this one to insert `Functional`.

    Attributes:
        saved_as: how it is saved in a model directory; a class that has none is saved in no other way than as `.keras`.
        settings: arguments of the constructor that pre-training has settings for.
    """

    default_rate = 5e-5
    default_loss_weights: dict[str, float] | None = None
    has_one_width = False  # all batches have it
    compiles_shapes = property(compiles_shapes)
    settings: Any = ()

    def __init__(self, backbone, inputs, outputs, name):
        super().__init__(inputs=inputs, outputs=outputs, name=name)
        self.dtype_policy = backbone.dtype_policy
        self.backbone = backbone

    def find_published(self):
        """Return the model that a model directory is to hold; no property, as Keras walks through those to save."""
        return self

    def list_fixed_weights(self):
        """Return weights of a model within that never change, and that a checkpoint need not hold."""
        return []

    def list_matrices(self):
        """Return the paths of the matrices of all blocks; see `EncoderBlock.list_matrices`."""
        return self.backbone.list_matrices()

    def make_losses(self):
        """Return the loss, or one for each output."""
        raise NotImplementedError

    def make_metrics(self):
        """Return metrics, or some for each output; they are weighted as the loss is."""
        raise NotImplementedError

    def compile(self, optimizer=None, loss=None, *, loss_weights=None, metrics=None, weighted_metrics=None, **kwargs):
        """Compile; what is left out is AdamW, the losses and the metrics of the model."""
        is_default = loss is None and loss_weights is None
        super().compile(
            optimizer=make_adamw(learning_rate=self.default_rate) if optimizer is None else optimizer,
            loss=self.make_losses() if loss is None else loss,
            loss_weights=self.default_loss_weights if is_default else loss_weights,
            metrics=metrics,
            weighted_metrics=self.make_metrics() if weighted_metrics is None else weighted_metrics,
            **kwargs,
        )
        self._auto_scale_loss = kwargs.get("auto_scale_loss", True)

    def get_compile_config(self):
        """Return what `compile` was given, so that a `.keras` file trains on; with what Keras leaves out of it.

        Keras saves neither `auto_scale_loss` nor which weights an optimizer was told not to decay.
        """
        config = super().get_compile_config()
        if config:
            config["auto_scale_loss"] = self._auto_scale_loss
            if undecayed := list_undecayed(self.optimizer, self.weights):
                kept = OptimizerWithExclusions(config["optimizer"], undecayed)
                config["optimizer"] = keras.saving.serialize_keras_object(kept)
        return config

    def compile_from_config(self, config):
        """Compile as the saved model was, and build the optimizer, whose state Keras loads next."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None:
            self.optimizer.build(self.trainable_variables)

    def fit(self, x=None, *args, **kwargs):
        """Train as `keras.Model` does; batches of a Grain data set may be of several widths on TensorFlow, too."""
        if "validation_data" in kwargs:
            kwargs["validation_data"] = take_batches(kwargs["validation_data"], self.has_one_width)
        return super().fit(take_batches(x, self.has_one_width), *args, **kwargs)

    def evaluate(self, x=None, *args, **kwargs):
        """Measure as `keras.Model` does, with batches as of `fit`."""
        return super().evaluate(take_batches(x, self.has_one_width), *args, **kwargs)

    @classmethod
    def from_preset(cls, path, **overrides):
        """Load from a model directory, ours or Hugging Face's.

        Dropout rates, `dtype` and `name` may be overridden. A directory without the head of a task gives its encoder,
        and the head is new: where it has classes, `labels` or `num_classes` must be given. `new_head=True` leaves out a
        head that the directory has, for a task with other classes. A pooler that the model needs and the directory
        lacks is new, one that it does not need is left out.
        """
        return load_preset(cls, path, **overrides)

    def save_to_preset(self, path, **details):
        """Write a model directory; see `conversion.model_directory.save_model_directory`."""
        save_preset(self, path, **details)

    def get_config(self):
        config = {"backbone": _serialize(self.backbone), "name": self.name}
        inner = [self.backbone]
        return config | describe_frozen(self, inner) | describe_quantized(self, inner)

    @classmethod
    def from_config(cls, config):
        backbone = config["backbone"]
        if not isinstance(backbone, Backbone):
            backbone = keras.saving.deserialize_keras_object(backbone)
        arguments = config | {"backbone": backbone}
        frozen, quantized = (arguments.pop(key, None) for key in (FROZEN, QUANTIZED))
        return freeze(quantize(cls(**arguments), quantized), frozen)


def _serialize(backbone):
    """Return what `keras.saving.serialize_keras_object` does, which imports TensorFlow first, on any backend."""
    return {
        "module": type(backbone).__module__,
        "class_name": type(backbone).__name__,
        "config": backbone.get_config(),
        "registered_name": keras.saving.get_registered_name(type(backbone)),
    }


def make_inputs(*more_names, axes=(None,)):
    """Return the inputs of the backbone, and others like them, int32, (batch, *axes), by name."""
    return {key: keras.Input(axes, dtype="int32", name=key) for key in (*INPUT_NAMES, *more_names)}


def encode(backbone, inputs):
    """Return the outputs of the backbone for inputs among which there are others."""
    return backbone({key: inputs[key] for key in INPUT_NAMES})


def project(backbone, hidden, units, name, make_initializer=normal):
    """Return float32 logits, (..., units), by a dense layer of that name."""
    initializer = make_initializer(backbone.initializer_range)
    return keras.layers.Dense(units, kernel_initializer=initializer, dtype="float32", name=name)(hidden)


def classify(backbone, hidden, units, dropout_rate):
    """Return float32 logits, (..., units), after dropout: what Hugging Face calls `classifier` in each of its models.

    Source: google-research/bert, run_classifier.py, `create_model`.
    """
    dropout = Dropout(dropout_rate, dtype=backbone.dtype_policy, name="classifier_dropout")
    return project(backbone, dropout(hidden), units, "classifier")

"""Base class of models with a head: defaults of `compile`, config, model directories."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import cached_property
from typing import Any, Self

import keras
import numpy as np

from keras_bert_flow.backends.batches import (
    Rule,
    check_ids,
    check_labels,
    check_single_texts,
    check_source,
    class_rule,
    take_batches,
)
from keras_bert_flow.backends.values import Tensor
from keras_bert_flow.by_name import load_public
from keras_bert_flow.layers.dense import Dropout, OutputDense, normal
from keras_bert_flow.layers.heads import PredictionHead
from keras_bert_flow.models.backbone import INPUT_NAMES, Backbone, PresetModel
from keras_bert_flow.models.defaults import OptimizerWithExclusions, list_undecayed, make_adamw
from keras_bert_flow.models.losses import BinaryTokenLoss, DatasetLosses, LabelLoss, SquaredError
from keras_bert_flow.models.saved_as import PREDICTION_HEAD, SavedAs
from keras_bert_flow.models.trained_weights import (
    describe_frozen,
    describe_lora,
    describe_quantized,
    restore_trained,
)

KNOWN_LOSSES = (keras.losses.SparseCategoricalCrossentropy, SquaredError, LabelLoss, BinaryTokenLoss)
COMPILES_SHAPES = keras.backend.backend() != "torch"  # whether training compiles each new shape


def compiles_shapes(model: keras.Model) -> bool:
    """Return whether prediction compiles each new shape: on JAX, and on TensorFlow with XLA.

    Without XLA, TensorFlow traces one graph for the first shape, one for any number of rows, and one for any width.
    """
    return keras.backend.backend() == "jax" or (keras.backend.backend() == "tensorflow" and bool(model.jit_compile))


class ModelWithHead(PresetModel):
    """Base class of functional models with an encoder and a head; abstract.

    Concrete subclasses are final. They define the defaults of `compile()` in `default_measures`, and name the arguments
    of their constructor in `saved_arguments`.

    Where it has a `preprocessor`, `fit`, `evaluate` and `predict`, and the calls for one batch, take texts in place of
    the inputs: a list, an array or a column of texts, or of pairs of texts. A model with `labels` takes their names in
    place of class ids.

    Attributes:
        preprocessor: makes inputs of texts, as a `TextPreprocessor` does. Default: that of the model directory that the
            model or its backbone was loaded from; None for any other.
        saved_as: how it is saved in a model directory; a class without it can only be saved as `.keras`.
        default_measures: output → what makes its default loss and its default metric; None is the only output.
        label_rule: what the labels of the only output may be, whatever the inputs; None: not checked.
        settings: constructor arguments that are settings of pre-training.
        saved_arguments: constructor arguments besides `backbone` and `name`, attributes that `get_config` returns.
    """

    default_rate = 5e-5
    default_measures: Mapping[str | None, tuple[Callable[[], keras.losses.Loss], Callable[[], keras.metrics.Metric]]]
    default_loss_weights: dict[str, float] | None = None
    label_rule: Rule | None = None
    has_one_width = False  # whether all batches have the same width
    takes_packed_rows = False  # whether a row may hold several texts: all outputs are of tokens
    compiles_shapes = property(compiles_shapes)
    settings: Any = ()
    saved_arguments: tuple[str, ...] = ()
    _preprocessor: Any = None
    _evaluated: Any = None  # losses and weights of which the means over a dataset are known
    _has_known_losses = False

    def __init__(self, backbone: Backbone, inputs: dict[str, Tensor], outputs: Any, name: str) -> None:
        super().__init__(inputs=inputs, outputs=outputs, name=name)
        self.dtype_policy = backbone.dtype_policy
        self.backbone = backbone

    @property
    def preprocessor(self) -> Any:
        if self._preprocessor is None and self.backbone.preset is not None:
            kind = load_public("TextPreprocessor")
            self._preprocessor = kind.of_model(self.backbone.preset, self.backbone.max_positions)  # None: no tokenizer
        return self._preprocessor

    @preprocessor.setter
    def preprocessor(self, value: Any) -> None:
        self._preprocessor = value

    def encode_texts(self, x: Any, y: Any = None) -> tuple[Any, Any]:
        """Return (x, y) with the model's inputs in place of texts, and class ids in place of names.

        Raises:
            ValueError: there are texts and no preprocessor, the model reads more than texts, or a class is unknown.
        """
        y = number_classes(y, getattr(self, "labels", None))
        if (texts := list_texts(x)) is None:
            return x, y
        if any(len(tensor.shape) != 2 for tensor in self.inputs) or len(self.inputs) != len(INPUT_NAMES):
            raise ValueError(
                f"{type(self).__name__} must be given its inputs, which are more than texts. Received: texts. "
                "`kbf.load` asks a model directory with texts."
            )
        if self.preprocessor is None:
            raise ValueError(
                "A model needs a tokenizer to take texts. Received: texts, and no `preprocessor`. Load the model or "
                "its backbone with `from_preset` from a directory that holds one, or set `model.preprocessor` to "
                "kbf.TextPreprocessor(kbf.Tokenizer.from_preset(path))."
            )
        return self.preprocessor(texts), y

    def find_published(self) -> "ModelWithHead":
        """Return the model to save in the model directory; not a property, as Keras traverses properties to save."""
        return self

    def list_fixed_weights(self) -> list[keras.Variable]:
        """Return the weights of nested models that never change, which checkpoints leave out."""
        return []

    def list_matrices(self) -> dict[str, int]:
        """Return the paths of the matrices of all blocks; see `Block.list_matrices`."""
        return self.backbone.list_matrices()

    def make_losses_and_metrics(self) -> tuple[Any, Any]:
        """Return the default loss and the default metrics, or a dict by output of each; None without any.

        The metrics are weighted like the loss.
        """
        if not self.default_measures:
            return None, None
        losses = {output: make_loss() for output, (make_loss, _) in self.default_measures.items()}
        metrics = {output: [make_metric()] for output, (_, make_metric) in self.default_measures.items()}
        return losses.get(None, losses), metrics.get(None, metrics)

    def make_rules(self, x: Any) -> dict[str | None, Rule]:
        """Return the `backends.batches.Rule` of the labels of each output of the default losses, given the inputs."""
        if not isinstance(self.output, Mapping):
            return {} if self.label_rule is None else {None: self.label_rule}
        return {name: class_rule(output.shape) for name, output in self.output.items() if output.shape[-1] != 1}

    def check_batch(self, x: Any, y: Any = None, sample_weight: Tensor | None = None) -> None:
        """Check ids and labels that are in the memory of the host.

        Raises:
            ValueError: an id or a label does not exist; the message has the first one.
        """
        check_ids(x, self.backbone.list_id_sizes())
        if not self.takes_packed_rows:
            check_single_texts(x)
        if y is None or not self._has_known_losses or not isinstance(x, Mapping):
            return
        for name, rule in self.make_rules(x).items():
            labels, weights = (each.get(name) if isinstance(each, Mapping) else each for each in (y, sample_weight))
            if labels is not None:
                check_labels(labels, weights, rule)

    def compile(
        self,
        optimizer: Any = None,
        loss: Any = None,
        *,
        loss_weights: Any = None,
        metrics: Any = None,
        weighted_metrics: Any = None,
        **kwargs: Any,
    ) -> None:
        """Compile the model. Defaults: AdamW and `make_losses_and_metrics()`."""
        is_default = loss is None and loss_weights is None
        if loss is None or weighted_metrics is None:
            default_loss, default_metrics = self.make_losses_and_metrics()
        super().compile(
            optimizer=make_adamw(learning_rate=self.default_rate) if optimizer is None else optimizer,
            loss=default_loss if loss is None else loss,
            loss_weights=self.default_loss_weights if is_default else loss_weights,
            metrics=metrics,
            weighted_metrics=default_metrics if weighted_metrics is None else weighted_metrics,
            **kwargs,
        )
        self._auto_scale_loss = kwargs.get("auto_scale_loss", True)
        chosen = self.loss if loss is None else loss
        weights = self.default_loss_weights if is_default else loss_weights
        self._has_known_losses = all(isinstance(each, KNOWN_LOSSES) for each in keras.tree.flatten(chosen))
        self._evaluated = (chosen, weights) if loss is None or self._has_known_losses else None
        self.__dict__.pop("_dataset_losses", None)

    @cached_property
    def _dataset_losses(self) -> Any:
        """The losses of a whole dataset, or None; made when the model is first evaluated."""
        return DatasetLosses.make(*self._evaluated) if self._evaluated else None

    def get_compile_config(self) -> Any:
        """Return the compile config, so that training can continue from a `.keras` file.

        It includes what Keras does not save: `auto_scale_loss`, and the weights excluded from weight decay.
        """
        config = super().get_compile_config()
        if config:
            config["auto_scale_loss"] = self._auto_scale_loss
            if undecayed := list_undecayed(self.optimizer, self.weights):
                kept = OptimizerWithExclusions(config["optimizer"], undecayed)
                config["optimizer"] = keras.saving.serialize_keras_object(kept)
        return config

    def compile_from_config(self, config: Mapping[str, Any]) -> None:
        """Compile like the saved model, and build the optimizer, whose state Keras loads next."""
        self.compile(**keras.saving.deserialize_keras_object(config))
        if self.optimizer is not None:
            self.optimizer.build(self.trainable_variables)

    def fit(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> keras.callbacks.History:
        """Train like `keras.Model.fit`, on texts too, and on Grain datasets with batches of several widths.

        Without `steps_per_epoch` an epoch of `task_dataset` or `pretraining_dataset` is one pass over its rows.

        Raises:
            ValueError: an id or a label does not exist.
        """
        x, y = self.encode_texts(x, y)
        _count_steps(x, "steps_per_epoch", kwargs)
        with ExitStack() as checks:
            if (validation := kwargs.get("validation_data")) is not None:
                is_tuple = isinstance(validation, tuple)
                parts = keras.utils.unpack_x_y_sample_weight(validation) if is_tuple else (validation,)
                parts = (*self.encode_texts(*parts[:2]), *parts[2:]) if is_tuple else parts
                _count_steps(parts[0], "validation_steps", kwargs)
                checked = checks.enter_context(self._checked(*parts))
                kwargs["validation_data"] = (checked, *parts[1:]) if is_tuple else checked
            weights = kwargs.get("sample_weight")
            x = checks.enter_context(self._checked(x, y, weights, is_training=True))
            return super().fit(x, y, *args, **kwargs)

    def evaluate(self, x: Any = None, y: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Evaluate like `keras.Model.evaluate`, with the same texts and datasets as `fit`.

        The default losses are the weighted means over all rows, or labelled tokens, of the dataset, as the metrics are,
        where Keras averages the means of batches, filler rows of weight 0 included.

        Raises:
            ValueError: an id or a label does not exist.
        """
        if any(name.startswith("_") for name in kwargs):  # inside `fit`, which has looked at the batches
            return super().evaluate(x, y, *args, **kwargs)
        x, y = self.encode_texts(x, y)
        _count_steps(x, "steps", kwargs)
        if self._dataset_losses is not None:
            self._dataset_losses.build_metrics(self)
        with self._checked(x, y, kwargs.get("sample_weight")) as x:
            return super().evaluate(x, y, *args, **kwargs)

    def train_on_batch(
        self, x: Any, y: Any = None, sample_weight: Tensor | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        x, y = self.encode_texts(x, y)
        self.check_batch(x, y, sample_weight)
        return super().train_on_batch(x, y, sample_weight, *args, **kwargs)

    def test_on_batch(
        self, x: Any, y: Any = None, sample_weight: Tensor | None = None, *args: Any, **kwargs: Any
    ) -> Any:
        x, y = self.encode_texts(x, y)
        self.check_batch(x, y, sample_weight)
        if self._dataset_losses is not None:
            self._dataset_losses.build_metrics(self)
        return super().test_on_batch(x, y, sample_weight, *args, **kwargs)

    def predict(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Predict like `keras.Model.predict`, from texts too."""
        x, _ = self.encode_texts(x)
        _count_steps(x, "steps", kwargs)
        with self._checked(x) as x:
            return super().predict(x, *args, **kwargs)

    def predict_on_batch(self, x: Any) -> Any:
        x, _ = self.encode_texts(x)
        check_ids(x, self.backbone.list_id_sizes())
        if not self.takes_packed_rows:
            check_single_texts(x)
        return super().predict_on_batch(x)

    def test_step(self, *given: Any) -> Any:
        """Measure a batch; like `keras.Model.test_step`, but the losses are weighted by their sample weights."""
        if self._dataset_losses is None:
            return super().test_step(*given)
        *state, data = given
        if not state:
            x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
            return self._measure(x, y, self(x, training=False), sample_weight)
        (trainable, non_trainable, metrics), (x, y, sample_weight) = (
            *state,
            keras.utils.unpack_x_y_sample_weight(data),
        )
        y_pred, non_trainable = self.stateless_call(trainable, non_trainable, x, training=False)
        pairs = list(zip(self.metrics_variables, metrics, strict=True))
        with keras.StatelessScope(state_mapping=pairs) as scope:
            logs = self._measure(x, y, y_pred, sample_weight)
        return logs, (trainable, non_trainable, [scope.get_current_value(variable) for variable, _ in pairs])

    def _measure(self, x: Any, y: Any, y_pred: Any, sample_weight: Tensor) -> Any:
        self._dataset_losses.update(self.metrics, self.number_labels(y, y_pred), y_pred, sample_weight)
        return self.compute_metrics(x, y, y_pred, sample_weight)

    def number_labels(self, y: Any, y_pred: Any) -> Any:
        """Return the labels for the loss, which may be made here where none are given."""
        return y

    @contextmanager
    def _checked(
        self, x: Any, y: Any = None, sample_weight: Tensor | None = None, is_training: bool = False
    ) -> Iterator[Any]:
        """Yield batches that are checked when they are read; errors are raised as they are, whichever thread reads."""
        errors: list[ValueError] = []
        if not is_training:
            x = getattr(x, "plain_weights", lambda: x)()
        try:
            yield take_batches(check_source(x, y, sample_weight, self.check_batch, errors), self.has_one_width)
        except Exception:
            if errors:
                raise errors[0] from None
            raise

    def get_config(self) -> dict[str, Any]:
        kind, inner = type(self.backbone), [self.backbone]
        backbone = {  # like `keras.saving.serialize_keras_object`, which would import TensorFlow on any backend
            "module": kind.__module__,
            "class_name": kind.__name__,
            "config": self.backbone.get_config(),
            "registered_name": keras.saving.get_registered_name(kind),
        }
        own = {name: getattr(self, name) for name in self.saved_arguments}
        return (
            {"backbone": backbone, "name": self.name}
            | describe_frozen(self, inner)
            | describe_lora(self, inner)
            | describe_quantized(self, inner)
            | {name: list(value) if isinstance(value, tuple) else value for name, value in own.items()}
        )

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        backbone = config["backbone"]
        if not isinstance(backbone, Backbone):
            backbone = keras.saving.deserialize_keras_object(backbone)
        return restore_trained(cls, config | {"backbone": backbone})


def _count_steps(x: Any, name: str, options: dict[str, Any]) -> None:
    """Set the number of steps of a pass over a dataset that repeats for ever, unless it is given."""
    steps = getattr(x, "steps_per_epoch", None)
    if steps is not None and options.get(name) is None:
        options[name] = steps


def make_inputs(*more_names: str, axes: tuple[None, ...] = (None,)) -> dict[str, Tensor]:
    """Return Keras inputs for the backbone and for further names, int32, (batch, *axes), by name."""
    return {key: keras.Input(axes, dtype="int32", name=key) for key in (*INPUT_NAMES, *more_names)}


def encode(backbone: Backbone, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Call the backbone on its inputs, ignoring others, and return its outputs."""
    return backbone({key: inputs[key] for key in INPUT_NAMES})


def project(
    backbone: Backbone, hidden: Tensor, units: int, name: str, make_initializer: Callable[[float], Any] = normal
) -> Tensor:
    """Return float32 logits, (..., units), from a dense layer with the given name."""
    initializer = make_initializer(backbone.initializer_range)
    return OutputDense(units, kernel_initializer=initializer, dtype="float32", name=name)(hidden)


def transform(backbone: Backbone, hidden: Tensor) -> Tensor:
    """Return what a head of the encoder's family projects: hidden states, (..., hidden), through a `PredictionHead`.

    Unchanged in families without one; the `SavedAs` of a model is then as `with_transform` returns it.
    """
    shape = backbone.shape
    if not shape.has_prediction_head:
        return hidden
    return PredictionHead(shape, dtype=backbone.dtype_policy, name="head")(hidden)


def with_transform(saved_as: SavedAs, backbone: Backbone) -> SavedAs:
    """Return the `SavedAs` of a head that projects what `transform` returns."""
    return replace(saved_as, head=saved_as.head | PREDICTION_HEAD) if backbone.shape.has_prediction_head else saved_as


def classify(backbone: Backbone, hidden: Tensor, units: int, dropout_rate: float) -> Tensor:
    """Return float32 logits, (..., units), after dropout: the layer that all Hugging Face models call `classifier`.

    Source: google-research/bert, run_classifier.py, `create_model`.
    """
    dropout = Dropout(dropout_rate, dtype=backbone.dtype_policy, name="classifier_dropout")
    return project(backbone, dropout(hidden), units, "classifier")


# Texts in place of model inputs, and names of classes in place of labels.

PAIR = {"text", "text_pair"}


def list_texts(x: Any) -> list[Any] | None:
    """Return texts, or pairs of texts, as a list; None for anything else.

    Args:
        x: a text or an object with `text` and `text_pair`, which is one item; or a list, tuple, array or column of
            such items, or of lists or tuples of two texts.
    """
    if isinstance(x, str) or isinstance(x, Mapping) and set(x) == PAIR and _is_item(x):
        return [x]
    if not isinstance(x, list | tuple):
        if not _holds_objects(x):
            return None
        x = x.tolist()
    return list(x) if x and _is_item(x[0]) else None


def number_classes(y: Any, labels: Sequence[str] | None) -> Any:
    """Return the class ids of names, int32, (rows,); anything but a list, array or column of names unchanged.

    Raises:
        ValueError: a name is none of the labels.
    """
    names = y.tolist() if _holds_objects(y) else y
    if not isinstance(names, list | tuple) or not names or not isinstance(names[0], str):
        return y
    ids = {name: number for number, name in enumerate(labels or ())}
    unknown = next((row for row, name in enumerate(names) if name not in ids), None)
    if unknown is not None:
        known = f"Use one of {', '.join(ids)}" if ids else "Build the model with `labels`, or number the classes"
        raise ValueError(f"A label must be one of the model's. Received: {names[unknown]!r} in row {unknown}. {known}.")
    return np.array([ids[name] for name in names], np.int32)


def _holds_objects(x: Any) -> bool:
    """Return whether an array or a column of pandas may hold strings."""
    if not hasattr(x, "dtype") or not hasattr(x, "tolist"):
        return False
    return getattr(x.dtype, "kind", "") in ("U", "T", "O") or str(x.dtype).startswith("str")


def _is_item(item: Any) -> bool:
    if isinstance(item, Mapping):
        return set(item) == PAIR and all(isinstance(text, str) for text in item.values())
    if isinstance(item, list | tuple):
        return len(item) == 2 and all(isinstance(text, str) for text in item)
    return isinstance(item, str)

"""Sort texts into classes."""

import keras

from keras_bert_flow.layers.dropout import Dropout
from keras_bert_flow.layers.initializers import truncated_normal
from keras_bert_flow.models.backbone import INPUT_NAMES, BertBackbone, require_pooler
from keras_bert_flow.models.defaults import make_adamw, token_accuracy, token_loss
from keras_bert_flow.models.preset import load_preset, save_preset


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class BertTextClassifier(keras.Model):
    """Give one logit a class to each text or pair of texts: pooled output, dropout, dense.

    Inputs: those of the backbone. Output: float32 logits, (batch, num_classes).

    Args:
        labels: names of the classes, in the order of their ids; saved in the model directory.
    Raises:
        ValueError: there are fewer than two classes, not `num_classes` labels, or no pooler.
    Source: Devlin et al. 2019, section 4.1; google-research/bert, run_classifier.py, `create_model`.
    """

    def __init__(self, backbone, num_classes, dropout_rate=0.1, labels=None, name="bert_text_classifier"):
        if num_classes < 2:
            raise ValueError(
                f"`num_classes` must be at least 2. Received: num_classes={num_classes}. Count the labels."
            )
        if labels is not None and len(labels) != num_classes:
            raise ValueError(
                f"`labels` must hold `num_classes` names. Received: {len(labels)} labels, num_classes={num_classes}. "
                f"Try num_classes={len(labels)}."
            )
        require_pooler(backbone)
        inputs = {key: keras.Input((None,), dtype="int32", name=key) for key in INPUT_NAMES}
        pooled = backbone(inputs)["pooled_output"]
        dropout = Dropout(dropout_rate, dtype=backbone.dtype_policy, name="classifier_dropout")
        logits = keras.layers.Dense(
            num_classes,
            kernel_initializer=truncated_normal(backbone.initializer_range),
            dtype="float32",
            name="classifier",
        )(dropout(pooled))
        super().__init__(inputs=inputs, outputs=logits, name=name)
        self.dtype_policy = backbone.dtype_policy
        self.backbone = backbone
        self.num_classes = num_classes
        self.dropout_rate = dropout_rate
        self.labels = None if labels is None else tuple(labels)

    def compile(self, optimizer=None, loss=None, *, metrics=None, weighted_metrics=None, **kwargs):
        """Compile; what is left out is AdamW at 5e-5, the cross-entropy and the accuracy."""
        super().compile(
            optimizer=make_adamw(learning_rate=5e-5) if optimizer is None else optimizer,
            loss=token_loss() if loss is None else loss,
            metrics=metrics,
            weighted_metrics=[token_accuracy()] if weighted_metrics is None else weighted_metrics,
            **kwargs,
        )

    @classmethod
    def from_preset(cls, path, **overrides):
        """Load from a model directory, ours or Hugging Face's.

        A directory without a classifier gives its encoder and pooler, and `num_classes` or `labels` must be given;
        that of a `BertMaskedLM` has no pooler either, and a new one is put on.
        """
        return load_preset("classifier", path, **overrides)

    def save_to_preset(self, path, **details):
        """Write a model directory; see `conversion.model_directory.save_model_directory`."""
        save_preset(self, path, **details)

    def get_config(self):
        return {
            "backbone": keras.saving.serialize_keras_object(self.backbone),
            "num_classes": self.num_classes,
            "dropout_rate": self.dropout_rate,
            "labels": None if self.labels is None else list(self.labels),
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config):
        backbone = config["backbone"]
        if not isinstance(backbone, BertBackbone):
            backbone = keras.saving.deserialize_keras_object(backbone)
        return cls(**(config | {"backbone": backbone}))

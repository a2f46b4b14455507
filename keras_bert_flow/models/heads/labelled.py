"""Base for models with named classes."""

from keras_bert_flow.models.with_head import ModelWithHead, classify


class ModelWithClasses(ModelWithHead):
    """Base class of models with one logit per class; abstract.

    Without `num_classes` there are as many as `labels`.

    Raises:
        ValueError: there are fewer than `least_classes` classes, not `num_classes` labels, or neither is given.
    """

    least_classes = 2

    def __init__(self, backbone, inputs, hidden, num_classes, dropout_rate, labels, name):
        if num_classes is None and labels is not None:
            num_classes = len(labels)
        self._check_classes(num_classes, labels)
        super().__init__(backbone, inputs, classify(backbone, hidden, num_classes, dropout_rate), name)
        self.num_classes = num_classes
        self.dropout_rate = dropout_rate
        self.labels = None if labels is None else tuple(labels)

    @classmethod
    def _check_classes(cls, num_classes, labels):
        if num_classes is None:
            raise ValueError(
                "A classifier must be given its classes. Received: neither `labels` nor `num_classes`. "
                "Try labels=['no', 'yes']."
            )
        if num_classes < cls.least_classes:
            raise ValueError(
                f"`num_classes` must be at least {cls.least_classes}. Received: num_classes={num_classes}. "
                "Count the labels."
            )
        if labels is not None and len(labels) != num_classes:
            raise ValueError(
                f"`labels` must hold `num_classes` names. Received: {len(labels)} labels, num_classes={num_classes}. "
                f"Try num_classes={len(labels)}."
            )

    def get_config(self):
        return super().get_config() | {
            "num_classes": self.num_classes,
            "dropout_rate": self.dropout_rate,
            "labels": None if self.labels is None else list(self.labels),
        }

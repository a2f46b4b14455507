"""Token classification, such as named entity recognition."""

import keras

from keras_bert_flow.models.backbone import refuse_pooler
from keras_bert_flow.models.batch_checks import tag_rule
from keras_bert_flow.models.heads.labelled import ModelWithClasses
from keras_bert_flow.models.losses import TagAccuracy, TagLoss
from keras_bert_flow.models.saved_as import CLASSES, CLASSIFIER_HEAD, SavedAs
from keras_bert_flow.models.with_head import encode, make_inputs


@keras.saving.register_keras_serializable(package="keras_bert_flow")
class TokenClassifier(ModelWithClasses):
    """Token classifier: sequence output, dropout, dense.

    Inputs: those of the backbone. Output: float32 logits, (batch, length, num_classes). Default loss of `compile()`:
    the mean cross-entropy over tokens, weighted by `sample_weight`, (batch, length). Labels below 0 have weight 0.
    `kbf.TagLoss(reduction="sum")` is for weights that are already divided, such as those of `task_dataset`.

    Args:
        backbone: built with `use_pooler=False`.
        num_classes: their number; not needed with `labels`.
        labels: names of the tags, in the order of their ids; saved in the model directory.
    Raises:
        ValueError: there are fewer than two tags, not `num_classes` labels, or the backbone has a pooler.
    Source: Devlin et al. 2019, section 5.3.
    """

    saved_as = SavedAs("ForTokenClassification", "token classifier", CLASSIFIER_HEAD, use_pooler=False, options=CLASSES)

    def __init__(self, backbone, num_classes=None, dropout_rate=0.1, labels=None, name="token_classifier"):
        refuse_pooler(backbone)
        inputs = make_inputs()
        sequence = encode(backbone, inputs)["sequence_output"]
        super().__init__(backbone, inputs, sequence, num_classes, dropout_rate, labels, name)

    def make_losses(self):
        return TagLoss()

    def make_metrics(self):
        return [TagAccuracy(name="accuracy")]

    def make_rules(self, x):
        return {None: tag_rule(self.num_classes)}

"""Distillation: masked tokens that a teacher model predicts as well.

Source: Sanh et al. 2019 (DistilBERT), section 3; arXiv:1910.01108.
"""

import numpy as np

from keras_bert_flow.text.objectives.mlm import MaskedTokens
from keras_bert_flow.text.objectives.objective import Batch, Features


class Distillation(MaskedTokens):
    """Batches for a student model, from records of any objective; only the masked tokens are used.

    The outputs `soft` and `hidden` of the model are losses that do not depend on labels, which are 0.

    Args:
        has_soft_targets, has_hidden_states: whether the model has these outputs.
    """

    has_words_head = False

    def __init__(self, has_soft_targets: bool = True, has_hidden_states: bool = True):
        self._has_soft_targets, self._has_hidden_states = has_soft_targets, has_hidden_states

    def make_batch(self, features: Features) -> Batch:
        x, y, weights = super().make_batch(features)
        if self._has_soft_targets:
            y, weights = y | {"soft": np.zeros_like(y["mlm"])}, weights | {"soft": weights["mlm"]}
        if self._has_hidden_states:
            labels, mask = np.zeros_like(x["token_ids"]), (x["padding_mask"] > 0).astype("float32")
            y, weights = y | {"hidden": labels}, weights | {"hidden": mask}
        return x, y, weights

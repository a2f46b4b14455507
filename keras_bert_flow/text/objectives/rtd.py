"""Replaced-token detection: a small masked LM fills the masks, and a second encoder detects which tokens it replaced.

Source: Clark et al. 2020 (ELECTRA), section 2; arXiv:2003.10555.
"""

from collections.abc import Mapping

import numpy as np

from keras_bert_flow.text.objectives.mlm import MaskedTokens
from keras_bert_flow.text.objectives.objective import Batch, Features
from keras_bert_flow.text.rows import keyed_generator

DRAWS = "replacement_draws"


class ReplacedTokens(MaskedTokens):
    """Replaced-token detection: instances of `mlm` for a generator, with random numbers to sample its tokens.

    The numbers are drawn here, so that they are backend-independent, and a resumed run draws the same.
    """

    families = ("electra",)
    has_generator = True
    has_words_head = False
    main_score = "replaced_token"
    scores = dict(MaskedTokens.scores) | {"rtd": "replaced_token"}

    def find_further_scores(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return `replaced_token_chance`, the accuracy of calling every token original.

        It follows from the probability that the generator gives to tokens other than the masked ones.
        """
        return {"replaced_token_chance": 1 - sums["masked_lm_missed"] / sums["replaced_token_weight"]}

    def draw(self, features: Features, *key: str | int) -> Features:
        """Add `replacement_draws`, float32, (masks_per_sequence,), in [0, 1)."""
        rng = keyed_generator("replacements", *key)
        return {**features, DRAWS: rng.random(len(features["masked_lm_ids"]), np.float32)}

    def make_batch(self, features: Features) -> Batch:
        """Add the original tokens, `mask_ids`, and the draws to the model's inputs.

        Its output `rtd` has logits of a wrong and a right decision on each token: the label is always 1, with the
        weight of a real token.
        """
        x, y, weights = super().make_batch(features)
        padding_mask = x["padding_mask"]
        x = x | {"mask_ids": y["mlm"], DRAWS: features[DRAWS]}
        return x, y | {"rtd": np.ones_like(padding_mask)}, weights | {"rtd": (padding_mask > 0).astype("float32")}

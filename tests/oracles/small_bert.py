"""Make a BERT that is small and odd enough for the likely mistake to show."""

import numpy as np

SMALL = {
    "vocabulary_size": 50,
    "num_layers": 2,
    "num_heads": 3,  # not 2 or 4: swapping heads, parts and head_dim gives another shape or another number
    "hidden_dim": 24,
    "intermediate_dim": 40,
    "max_positions": 16,
}
TINY = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}  # as fast as can be
LENGTHS = (9, 4, 1, 0)  # ragged, and one fully padded row


def make_inputs(seed=0, vocabulary_size=50, masks_per_sequence=None):
    """Return ragged int32 inputs; padding holds token ids as well, so that reading it shows."""
    rng = np.random.default_rng(seed)
    shape = (len(LENGTHS), max(LENGTHS))
    inputs = {
        "token_ids": rng.integers(0, vocabulary_size, shape),
        "segment_ids": rng.integers(0, 2, shape),
        "padding_mask": np.arange(shape[1]) < np.array(LENGTHS)[:, None],
    }
    if masks_per_sequence:
        inputs["mask_positions"] = rng.integers(0, shape[1], (shape[0], masks_per_sequence))
    return {name: value.astype("int32") for name, value in inputs.items()}

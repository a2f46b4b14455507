"""The steps around the engine's shuffle hold one group, however many they are handed."""

import pytest

from benchmarks.exchange_memory import STEPS, measure_step
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES

pytestmark = [pytest.mark.any_backend, pytest.mark.slow]

GROUP_BYTES = 16_000_000
HELD = 1.3  # of a group: Python's objects take 33 bytes each beside their content, and their places in a table
NOISE_BYTES = 12_000_000  # batches on their way, and what the allocator keeps


@pytest.mark.parametrize("step", STEPS)
def test_memory_does_not_grow_with_the_groups(step, tmp_path):
    vocab = tmp_path / "vocab.txt"
    vocab.write_text(
        "\n".join([*SPECIAL_PIECES, *(f"w{chr(97 + a)}{chr(97 + b)}" for a in range(26) for b in range(26))])
    )
    base, one, ten = (measure_step(step, times, str(vocab), GROUP_BYTES) for times in (0, 1, 10))
    assert ten <= 1.1 * one
    assert ten - base <= HELD * GROUP_BYTES + NOISE_BYTES

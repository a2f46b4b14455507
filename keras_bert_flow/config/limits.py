"""Upper limits of settings, far beyond what anybody trains.

A slip of the keyboard would otherwise take all memory, or a year.
"""

from typing import Annotated

from pydantic import Field

MOST_PIECES = 10_000_000
MOST_SHARDS = 100_000
MOST_LAYERS, MOST_HEADS = 1_000, 4_096
MOST_UNITS = 1 << 16
MOST_POSITIONS = MOST_SEQUENCES = 1 << 20
MOST_STEPS = MOST_EXAMPLES = 10**12
MOST_EPOCHS = 100_000
MOST_PROCESSES = 1_000
Seed = Annotated[int, Field(ge=0, lt=1 << 32)]  # as NumPy and Keras take them

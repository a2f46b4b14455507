"""Write a small model directory of each kind that is exported."""

from pathlib import Path

import keras_bert_flow as kbf
from benchmarks.export_table import HEADS
from tests.oracles.small_bert import SMALL
from tests.prediction.models import LONGEST, save


def save_kind(kind: str, folder: Path, **settings) -> Path:
    """Return a model directory with weights that no default hides.

    Args:
        settings: of the backbone.
    """
    name, use_pooler, options = HEADS[kind]
    sizes = SMALL | {"num_layers": 1, "max_positions": LONGEST, "use_pooler": use_pooler} | settings
    backbone = kbf.Backbone(**sizes)
    return save(getattr(kbf, name)(backbone, **options) if name else backbone, folder)

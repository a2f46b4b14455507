"""The card of a pre-trained model names what it began from, as the Hub does, and no path."""

import pytest

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.results.manifest import read_manifest
from keras_bert_flow.training.pretraining.pretrain import describe_run
from tests.oracles.tiny_records import write_tiny_records

pytestmark = pytest.mark.any_backend
SNAPSHOT = "hub/models--org--name/snapshots/c0ffee"


@pytest.mark.parametrize(
    ("model", "shown"), [(SNAPSHOT, "org/name, revision c0ffee"), ("mine", "another model"), (None, None)]
)
def test_card_says_what_a_run_began_from(tmp_path, model, shown):
    write_tiny_records(tmp_path / "records")
    config = PipelineConfig(initial_model=model and str(tmp_path / model))
    card = describe_run(config, read_manifest(tmp_path / "records"), {"seconds": 1.0, "steps": 1})
    rows = dict(next(rows for heading, rows in card.sections if heading == "Training"))
    assert rows.get("began from") == shown
    assert str(tmp_path) not in str(card.sections)

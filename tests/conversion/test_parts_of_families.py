"""Another encoder is a shape and a table: EuroBERT and NomicBERT, which this package has not, beside `transformers`."""

import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.conversion.tables.table import TABLES
from keras_bert_flow.models.families.family import FAMILIES
from tests.contracts import TOLERANCE, make_ids, run_reference
from tests.oracles.other_families import NAMES
from tests.oracles.small_bert import make_inputs
from tests.oracles.task_models import call

torch = pytest.importorskip("torch", reason="the reference needs torch")
transformers = pytest.importorskip("transformers", reason="the reference needs transformers")

SIZES = {"vocab_size": 50, "num_hidden_layers": 3, "num_attention_heads": 3, "hidden_size": 24, "intermediate_size": 42}
SIZES |= {"max_position_embeddings": 16, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}


@pytest.mark.slow_compiled
@pytest.mark.parametrize(("family", "prefix"), [("eurobert", "EuroBert"), ("nomic_bert", "NomicBert")])
def test_shape_and_table_make_a_family(tmp_path, monkeypatch, family, prefix):
    monkeypatch.setitem(FAMILIES, family, f"tests.oracles.other_families:{NAMES[family]}")
    monkeypatch.setitem(TABLES, family, f"tests.oracles.other_families:{NAMES[family]}_TABLE")
    theta = {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}}
    config = getattr(transformers, f"{prefix}Config")(**SIZES, **theta, attn_implementation="eager")
    reference = getattr(transformers, f"{prefix}Model")(config).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for name, value in reference.named_parameters():
            torch.nn.init.normal_(value, float("norm" in name and value.ndim == 1), 0.2)
    reference.save_pretrained(tmp_path)
    backbone = kbf.Backbone.from_preset(tmp_path)
    assert backbone.theta == 7.0
    assert backbone.count_params() == sum(value.numel() for value in reference.parameters())
    inputs = make_ids(make_inputs())
    found, expected = call(backbone, inputs), run_reference(reference, inputs)
    mask = inputs["padding_mask"].astype(bool)
    np.testing.assert_allclose(found["sequence_output"][mask], expected.last_hidden_state.numpy()[mask], atol=TOLERANCE)
    if backbone.use_pooler:
        real = mask.any(axis=1)
        np.testing.assert_allclose(found["pooled_output"][real], expected.pooler_output.numpy()[real], atol=TOLERANCE)

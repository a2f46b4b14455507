"""A masked-LM head with a table of its own travels to `transformers` and back, and trains apart from the embeddings."""

import json

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.conversion.model_directory import load_pretrainer
from keras_bert_flow.models.backbone import INPUT_NAMES
from keras_bert_flow.models.pretraining.masked_lm import make_vocabulary_model
from tests.contracts import TOLERANCE, make_ids, randomise, run_reference
from tests.conversion.test_families import load_reference, make_backbone
from tests.oracles.small_bert import LENGTHS, make_inputs

transformers = pytest.importorskip("transformers", reason="the reference needs transformers")

FAMILIES = ["albert", "deberta-v2", "distilbert", "electra", "mobilebert", "modernbert", "roberta"]


def guess(model):
    """Return our logits at the masked positions of real tokens, and those of `transformers` there."""
    inputs = make_ids(make_inputs(masks_per_sequence=3))
    real = np.array(LENGTHS)[:, None] > inputs["mask_positions"]
    ours = keras.ops.convert_to_numpy(model(inputs)["mlm"])[real]

    def pick(logits):
        return np.take_along_axis(logits, inputs["mask_positions"][..., None], axis=1)[real]

    return ours, lambda reference: pick(run_reference(reference, inputs).logits.numpy())


@pytest.mark.first_form_compiled
@pytest.mark.parametrize("family", FAMILIES)
def test_table_of_its_own_travels_both_ways(tmp_path, family):
    model = randomise(kbf.MaskedLM(make_backbone(family, use_pooler=False), tie_weights=False))
    model.save_to_preset(tmp_path / "ours")
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["tie_word_embeddings"] is False
    ours, of_reference = guess(model)
    reference = load_reference(family, "ForMaskedLM", tmp_path / "ours")
    np.testing.assert_allclose(ours, of_reference(reference), atol=TOLERANCE)
    reference.save_pretrained(tmp_path / "theirs")
    again = kbf.MaskedLM.from_preset(tmp_path / "theirs")
    assert not again.tie_weights
    for one, other in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow_compiled
def test_both_heads_of_bert_travel_with_a_table(tmp_path):
    model = randomise(kbf.BertPretrainer(make_backbone("bert"), tie_weights=False))
    model.save_to_preset(tmp_path / "ours")
    reference = transformers.BertForPreTraining.from_pretrained(tmp_path / "ours")
    np.testing.assert_array_equal(
        reference.cls.predictions.decoder.weight.detach().numpy().T,
        keras.ops.convert_to_numpy(model.get_layer("mlm_decoder").kernel),
    )
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    ours, theirs = guess(model)[0], guess(again)[0]
    np.testing.assert_array_equal(ours, theirs)


def test_further_pretraining_keeps_the_table(tmp_path):
    kbf.MaskedLM(make_backbone("bert", use_pooler=False), tie_weights=False).save_to_preset(tmp_path / "ours")
    model, new_layers = load_pretrainer(kbf.BertPretrainer, tmp_path / "ours", bag_of_words=1.0)
    assert not model.pretrainer.tie_weights and "mlm_decoder" not in new_layers and "nsp" in new_layers
    model.save_to_preset(tmp_path / "again")
    assert not load_pretrainer(kbf.BertPretrainer, tmp_path / "again")[0].tie_weights


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.first_form_compiled
def test_logits_of_all_tokens_are_those_of_the_head(tied):
    model = randomise(kbf.MaskedLM(make_backbone("bert", use_pooler=False), tie_weights=tied))
    inputs = make_ids(make_inputs(masks_per_sequence=3))
    positions = inputs["mask_positions"]
    logits = keras.ops.convert_to_numpy(make_vocabulary_model(model)({name: inputs[name] for name in INPUT_NAMES}))
    expected = keras.ops.convert_to_numpy(model(inputs)["mlm"])
    np.testing.assert_allclose(np.take_along_axis(logits, positions[..., None], axis=1), expected, atol=TOLERANCE)

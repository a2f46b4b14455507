"""MobileBERT beside `transformers`: published sizes, both heads of pre-training, and a pooler without weights."""

import json
import math
from dataclasses import asdict

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.conversion.convert import convert
from keras_bert_flow.conversion.directory_files import make_hf_config, read_shape
from keras_bert_flow.conversion.model_directory import load_task_model
from keras_bert_flow.conversion.tables.table import find_table
from keras_bert_flow.models.families.mobilebert import MobileBertShape
from tests.contracts import TOLERANCE, load_reference, make_ids, randomise, run_reference
from tests.oracles.small_bert import LENGTHS, SMALL, make_inputs
from tests.oracles.task_models import CASES, call, make_task_inputs

torch = pytest.importorskip("torch", reason="the reference needs torch")
transformers = pytest.importorskip("transformers", reason="the reference needs transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

PUBLISHED = {"vocabulary_size": 30522, "num_layers": 24, "num_heads": 4, "hidden_dim": 512, "intermediate_dim": 512}
# The authors' teacher, mobilebert/config/uncased_L-24_H-1024_B-512_A-4.json of google-research.
TEACHER = PUBLISHED | {
    "intermediate_dim": 4096,
    "hidden_act": "gelu",
    "bottleneck_dim": 1024,
    "num_feed_forwards": 1,
    "normalization": "layer_norm",
    "has_query_bottleneck": False,
}
# The same of a small model, as `transformers` names it.
INVERTED = {
    "intra_bottleneck_size": 36,
    "num_feedforward_networks": 1,
    "normalization_type": "layer_norm",
    "hidden_act": "gelu",
}
REAL = np.array(LENGTHS) > 0


def make_backbone(**settings):
    return kbf.Backbone("mobilebert", **SMALL | settings)


def make_reference(head, **settings):
    """Return a small model of `transformers` with all weights random."""
    sizes = {"vocab_size": 50, "num_hidden_layers": 2, "num_attention_heads": 3, "hidden_size": 24}
    sizes |= {"intermediate_size": 40, "max_position_embeddings": 16, "embedding_size": 7, "intra_bottleneck_size": 9}
    config = transformers.MobileBertConfig(**sizes | settings, attn_implementation="eager")
    model = getattr(transformers, f"MobileBert{head}")(config).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for name, value in model.named_parameters():
            torch.nn.init.normal_(value, float(name.endswith("LayerNorm.weight")), 0.2)
    return model


def shrink(reference):
    """Make what layer norms divide so small that the epsilon of each shows."""
    with torch.no_grad():
        for name, value in reference.named_parameters():
            if "LayerNorm" not in name:
                value.mul_(0.02)
            elif any(part in name for part in (".attention.output.", ".ffn.", ".bottleneck.input.")):  # residuals
                value.mul_(0.01)


def assert_same_weights(one, other):
    for theirs, ours in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(theirs, ours)


@pytest.mark.slow
def test_published_model_has_as_many_weights():
    with torch.device("meta"):
        theirs = transformers.MobileBertForPreTraining(transformers.MobileBertConfig())
    backbone = kbf.Backbone("mobilebert", **PUBLISHED)
    assert (backbone.embedding_dim, backbone.bottleneck_dim, backbone.num_feed_forwards) == (128, 128, 4)
    pooler = backbone.get_layer("pooler").count_params()
    assert (backbone.count_params(), backbone.count_params() - pooler) == (24_844_544, 24_581_888)
    model = kbf.BertPretrainer(backbone)
    whole = model.count_params()
    assert whole == sum(value.numel() for value in theirs.parameters()) == 36_860_220
    assert whole - pooler - model.get_layer("nsp").count_params() == 36_596_538  # of the masked LM


@pytest.mark.slow_compiled
@pytest.mark.parametrize(
    ("is_dense", "settings", "change"),
    [
        (True, {"num_feedforward_networks": 2}, None),
        (False, {"num_feedforward_networks": 2}, None),
        (True, INVERTED, None),
        (True, INVERTED | {"num_feedforward_networks": 2}, shrink),
        (True, INVERTED | {"intra_bottleneck_size": 24, "key_query_shared_bottleneck": False}, None),
    ],
    ids=["dense_pooler", "no_pooler", "inverted", "epsilons", "without_query_bottleneck"],
)
def test_both_heads_of_pretraining_travel_both_ways(tmp_path, is_dense, settings, change):
    reference = make_reference("ForPreTraining", classifier_activation=is_dense, **settings)
    if change:
        change(reference)
    reference.save_pretrained(tmp_path / "theirs")
    model = kbf.BertPretrainer.from_preset(tmp_path / "theirs")
    shape = model.backbone.shape
    theirs = reference.config
    assert (shape.num_feed_forwards, shape.has_dense_pooler) == (theirs.num_feedforward_networks, is_dense)
    assert (shape.hidden_act, shape.normalization) == (theirs.hidden_act, theirs.normalization_type)
    assert shape.has_query_bottleneck is theirs.key_query_shared_bottleneck
    inputs = make_ids(make_inputs(masks_per_sequence=3))
    positions, found, expected = inputs["mask_positions"], call(model, inputs), run_reference(reference, inputs)
    np.testing.assert_allclose(found["nsp"][REAL], expected.seq_relationship_logits.numpy()[REAL], atol=TOLERANCE)
    wanted = np.take_along_axis(expected.prediction_logits.numpy(), positions[..., None], axis=1)
    is_real = np.array(LENGTHS)[:, None] > positions
    np.testing.assert_allclose(found["mlm"][is_real], wanted[is_real], atol=TOLERANCE)
    model.save_to_preset(tmp_path / "ours")
    again = load_reference("MobileBertForPreTraining", tmp_path / "ours")
    for (name, one), other in zip(reference.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other), name
    assert again.config.classifier_activation is is_dense
    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert written["trigram_input"] is True and written["classifier_activation"] is is_dense
    assert {name: written[name] for name in settings} == settings


def project_from_hidden(reference):
    """Let queries and keys read the hidden states, as in google-research's code, and not in `transformers`."""
    for layer in reference.encoder.layer:
        attention, width = layer.attention.self, reference.config.hidden_size
        for name in ("query", "key"):
            setattr(attention, name, torch.nn.Linear(width, attention.all_head_size))
    return reference


@pytest.mark.slow_compiled
def test_teacher_of_the_authors_is_that_of_transformers_with_other_projections(tmp_path):
    settings = {name: TEACHER[name] for name in ("hidden_act", "num_feed_forwards", "normalization")}
    backbone = randomise(make_backbone(**settings, has_query_bottleneck=False, bottleneck_dim=36, embedding_dim=7))
    backbone.save_to_preset(tmp_path)
    config = transformers.MobileBertConfig.from_pretrained(tmp_path, attn_implementation="eager")
    assert (config.key_query_shared_bottleneck, config.intra_bottleneck_size) == (False, 36)
    reference = project_from_hidden(transformers.MobileBertModel(config)).eval()
    reference.load_state_dict(safetensors_torch.load_file(tmp_path / "model.safetensors"))
    inputs = make_ids(make_inputs())
    found, expected = call(backbone, inputs), run_reference(reference, inputs)
    mask = inputs["padding_mask"].astype(bool)
    np.testing.assert_allclose(found["sequence_output"][mask], expected.last_hidden_state.numpy()[mask], atol=TOLERANCE)
    assert_same_weights(kbf.Backbone.from_preset(tmp_path), backbone)


@pytest.mark.any_backend
def test_teacher_of_the_authors_has_as_many_weights():
    """Sun et al. 2020, table 1: 293 million. Queries and keys from a bottleneck of their own would make it 332."""
    shape = MobileBertShape(**TEACHER)
    sizes = dict(find_table("mobilebert").list_sizes(shape))
    found = sum(math.prod(getattr(shape, name) for name in names) for names in sizes.values())
    config = make_hf_config(asdict(shape) | {"family": "mobilebert"}, "Model")
    with torch.device("meta"):
        reference = project_from_hidden(transformers.MobileBertModel(transformers.MobileBertConfig(**config)))
    pooler = sum(value.numel() for value in reference.pooler.parameters())
    assert found == sum(value.numel() for value in reference.parameters()) - pooler
    assert found == 294_205_184


@pytest.mark.slow_compiled
@pytest.mark.parametrize("kind", ["classification", "multiple_choice"])
def test_heads_without_a_dense_pooler_travel_both_ways(tmp_path, kind):
    head = {"classification": "ForSequenceClassification", "multiple_choice": "ForMultipleChoice"}[kind]
    model = randomise(CASES[kind].make(make_backbone(has_dense_pooler=False)))
    model.save_to_preset(tmp_path / "ours")
    reference = load_reference(f"MobileBert{head}", tmp_path / "ours")
    inputs = make_ids(make_task_inputs(kind))
    real = inputs["padding_mask"].any(axis=-1)
    expected = run_reference(reference, inputs).logits.numpy()[real]
    np.testing.assert_allclose(call(model, inputs)["output"][real], expected, atol=TOLERANCE)
    reference.save_pretrained(tmp_path / "theirs")
    assert_same_weights(load_task_model(kind, tmp_path / "theirs", needs_head=True), model)


@pytest.mark.any_backend
def test_encoder_without_a_dense_pooler_has_a_pooled_output(tmp_path):
    make_reference("Model", classifier_activation=False).save_pretrained(tmp_path)
    backbone = kbf.Backbone.from_preset(tmp_path)
    outputs = call(backbone, make_ids(make_inputs()))
    np.testing.assert_array_equal(outputs["pooled_output"], outputs["sequence_output"][:, 0])


@pytest.mark.any_backend
def test_missing_fields_are_those_of_the_published_model():
    shape = read_shape({"model_type": "mobilebert"}, "config.json")
    assert shape == MobileBertShape(30522, 24, 4, 512, 512)
    expected = transformers.MobileBertConfig().to_dict()
    written = make_hf_config(asdict(shape) | {"family": "mobilebert"}, "Model")
    assert {name: expected[name] for name in written if name in expected} | {
        name: written[name] for name in ("architectures", "dtype")
    } == {name: value for name, value in written.items() if name in expected}


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("trigram_input", False),
        ("use_bottleneck", False),
        ("use_bottleneck_attention", True),
        ("key_query_shared_bottleneck", "yes"),
        ("classifier_activation", 1),
    ],
)
def test_other_variants_are_refused(tmp_path, setting, value):
    make_backbone().save_to_preset(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {setting: value}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=f"`{setting}` must be .* Received: {setting}={value!r}"):
        kbf.Backbone.from_preset(tmp_path)
    config |= {setting: make_hf_config(asdict(make_backbone().shape) | {"family": "mobilebert"}, "Model")[setting]}
    (tmp_path / "config.json").write_text(json.dumps(config | {"normalization_type": "group_norm"}))
    with pytest.raises(ValueError, match="must be one of no_norm, layer_norm. Received: normalization='group_norm'"):
        kbf.Backbone.from_preset(tmp_path)


@pytest.mark.any_backend
def test_kerashub_and_other_gelus_are_refused(tmp_path):
    make_backbone().save_to_preset(tmp_path / "model")
    with pytest.raises(ValueError, match="for KerasHub must be of one of bert, .* Received: mobilebert. No class"):
        convert(tmp_path / "model", tmp_path / "out", "kerashub")
    with pytest.raises(ValueError, match="must have a GELU to set `gelu`. Received: hidden_act=relu. Leave it out."):
        convert(tmp_path / "model", tmp_path / "out", gelu="erf")
    kbf.Backbone(**SMALL, hidden_act="relu").save_to_preset(tmp_path / "bert")
    with pytest.raises(ValueError, match="KerasHub's Bert must have GELUs. Received: hidden_act=relu"):
        convert(tmp_path / "bert", tmp_path / "out", "kerashub")


@pytest.mark.any_backend
def test_bert_with_relu_is_that_of_transformers(tmp_path):
    model = randomise(kbf.Backbone(**SMALL, hidden_act="relu"))
    model.save_to_preset(tmp_path)
    inputs, mask = make_ids(make_inputs()), make_inputs()["padding_mask"].astype(bool)
    expected = run_reference(load_reference("BertModel", tmp_path), inputs).last_hidden_state.numpy()
    found = keras.ops.convert_to_numpy(model(inputs)["sequence_output"])
    np.testing.assert_allclose(found[mask], expected[mask], atol=TOLERANCE)

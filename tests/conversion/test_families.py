"""Every family travels to `transformers` and back with all heads, the same numbers, and no key too many or too few."""

import json

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.conversion.model_directory import load_task_model
from keras_bert_flow.models.families import family as family_module
from tests import contracts
from tests.contracts import CLASSES, TOLERANCE, make_ids, randomise, run_family_test, run_reference, run_travel_test
from tests.oracles.small_bert import LENGTHS, SMALL, make_inputs
from tests.oracles.task_models import CASES, call, make_task_inputs

torch = pytest.importorskip("torch", reason="the reference needs torch")
transformers = pytest.importorskip("transformers", reason="the reference needs transformers")

FAMILIES = {name: prefix for name, prefix in CLASSES.items() if name != "bert"}
HEADS = {
    "classification": "ForSequenceClassification",
    "regression": "ForSequenceClassification",
    "multi_label": "ForSequenceClassification",
    "token_classification": "ForTokenClassification",
    "question_answering": "ForQuestionAnswering",
    "multiple_choice": "ForMultipleChoice",
}
# Family → prefix of its classes in `transformers`, published size → number of parameters.
CONTRACTS = {name: (reference, {}) for name, reference in FAMILIES.items()} | {"bert": ("Bert", {"tiny": 4_385_920})}


def load_reference(family, head, folder, **options):
    return contracts.load_reference(FAMILIES[family] + head, folder, **options)


def make_backbone(family, **settings):
    return kbf.Backbone(family, **SMALL | settings)


@pytest.mark.any_backend
@pytest.mark.parametrize("family", family_module.FAMILIES)
def test_family_keeps_contract(tmp_path, family):
    reference, sizes = CONTRACTS[family]
    run_family_test(family, tmp_path, reference, sizes, reads_next=family == "mobilebert")


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="there it is a part of the contract")
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.slow_compiled
def test_encoder_and_masked_lm_travel_both_ways(tmp_path, family):
    run_travel_test(family, tmp_path, FAMILIES[family])


def list_heads():
    """Yield each family with each head; what another form has in common with it is for slow tests."""
    for kind, head in HEADS.items():
        is_first = kind == next(name for name in HEADS if HEADS[name] == head)
        for family in FAMILIES:
            marks = [] if is_first or family == "electra" else [pytest.mark.slow]
            marks += [] if (kind, family) == ("classification", "electra") else [pytest.mark.slow_compiled]
            yield pytest.param(kind, family, marks=marks)


@pytest.mark.parametrize(("kind", "family"), list_heads())
@pytest.mark.slow_on_tensorflow
def test_task_model_travels_both_ways(tmp_path, family, kind):
    case = CASES[kind]
    model = randomise(case.make(make_backbone(family, use_pooler=case.use_pooler)))
    model.save_to_preset(tmp_path / "ours")
    reference = load_reference(family, HEADS[kind], tmp_path / "ours")
    inputs = make_ids(make_task_inputs(kind))
    outputs, mask = run_reference(reference, inputs), inputs["padding_mask"]
    spans = {
        name: getattr(outputs, f"{name}_logits").numpy()
        for name in ("start", "end")
        if hasattr(outputs, f"{name}_logits")
    }
    is_token = kind in ("token_classification", "question_answering")
    real = mask.astype(bool) if is_token else mask.any(axis=-1)
    for name, value in call(model, inputs).items():
        expected = spans[name] if spans else outputs.logits.numpy()
        value = value[:, None] if kind == "regression" else value
        np.testing.assert_allclose(value[real], expected[real], atol=TOLERANCE)
    reference.save_pretrained(tmp_path / "theirs")
    again = load_task_model(kind, tmp_path / "theirs", needs_head=True)
    for one, other in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_head_of_a_task_goes_on_from_an_encoder(tmp_path, family):
    encoder = randomise(make_backbone(family, use_pooler=False))
    encoder.save_to_preset(tmp_path)
    model = kbf.TextClassifier.from_preset(tmp_path, num_classes=2)
    assert model.backbone.family == family
    weights = {weight.path: keras.ops.convert_to_numpy(weight) for weight in model.weights}
    for weight in encoder.weights:
        np.testing.assert_array_equal(weights[weight.path], keras.ops.convert_to_numpy(weight))


@pytest.mark.slow_compiled
def test_albert_travels_with_both_heads_of_pretraining(tmp_path):
    model, inputs = (
        randomise(kbf.BertPretrainer(make_backbone("albert", embedding_dim=9))),
        make_inputs(masks_per_sequence=3),
    )
    model.save_to_preset(tmp_path / "ours")
    reference = load_reference("albert", "ForPreTraining", tmp_path / "ours")
    with torch.no_grad():
        outputs = reference.eval()(
            input_ids=torch.tensor(inputs["token_ids"]).long(),
            attention_mask=torch.tensor(inputs["padding_mask"]).long(),
            token_type_ids=torch.tensor(inputs["segment_ids"]).long(),
        )
    ours, real = model(inputs), np.array(LENGTHS) > 0
    found = keras.ops.convert_to_numpy(ours["nsp"])
    np.testing.assert_allclose(found[real], outputs.sop_logits.numpy()[real], atol=TOLERANCE)
    reference.save_pretrained(tmp_path / "theirs")
    again = kbf.BertPretrainer.from_preset(tmp_path / "theirs")
    for one, other in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


ALBERT_SIZES = {"base": (12, 12, 768, 3072), "large": (24, 16, 1024, 4096), "xxlarge": (12, 64, 4096, 16384)}


@pytest.mark.first_form
@pytest.mark.any_backend
@pytest.mark.parametrize("size", ["base", "large", pytest.param("xxlarge", marks=pytest.mark.slow)])
def test_published_alberts_have_as_many_weights(size):
    num_layers, num_heads, hidden_dim, intermediate_dim = ALBERT_SIZES[size]
    config = transformers.AlbertConfig(
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        hidden_size=hidden_dim,
        intermediate_size=intermediate_dim,
    )
    with torch.device("meta"):
        reference = transformers.AlbertModel(config)
    sizes = {"num_layers": num_layers, "num_heads": num_heads, "hidden_dim": hidden_dim}
    model = kbf.Backbone("albert", vocabulary_size=30000, intermediate_dim=intermediate_dim, **sizes)
    assert model.count_params() == sum(value.numel() for value in reference.parameters())


@pytest.mark.parametrize("groups", [1, 2, 3])
def test_layers_of_albert_share_weights_by_groups(tmp_path, groups):
    model, inputs = randomise(make_backbone("albert", num_layers=3, num_groups=groups)), make_ids(make_inputs())
    assert len(model.blocks) == groups and max(model.find_depths().values()) == groups
    model.save_to_preset(tmp_path)
    theirs, mask = (
        run_reference(load_reference("albert", "Model", tmp_path), inputs),
        inputs["padding_mask"].astype(bool),
    )
    found = keras.ops.convert_to_numpy(model(inputs)["sequence_output"])
    np.testing.assert_allclose(found[mask], theirs.last_hidden_state.numpy()[mask], atol=TOLERANCE)
    states = model.make_hidden_states_model()(inputs)
    assert len(states) == 4
    np.testing.assert_allclose(keras.ops.convert_to_numpy(states[-1])[mask], found[mask], atol=TOLERANCE)
    with pytest.raises(ValueError, match="`num_groups` must be from 1 to `num_layers`. Received: num_groups=4"):
        make_backbone("albert", num_layers=3, num_groups=4)


@pytest.mark.parametrize("sharing", ["attention", "feed_forward"])
@pytest.mark.slow_compiled
def test_albert_that_shares_a_part_of_each_block_travels(tmp_path, sharing):
    model = randomise(make_backbone("albert", num_layers=3, num_groups=3, sharing=sharing))
    inputs, mask = make_ids(make_inputs()), make_inputs()["padding_mask"].astype(bool)
    whole = make_backbone("albert", num_layers=3, num_groups=3)
    block = {"attention": 4 * (24 * 24 + 24), "feed_forward": 2 * 24 * 40 + 24 + 40}[sharing]
    assert model.count_params() == whole.count_params() - 2 * block
    found = keras.ops.convert_to_numpy(model(inputs)["sequence_output"])
    for kind in (model, randomise(kbf.TextClassifier(model, 2))):
        kind.save_to_preset(tmp_path / type(kind).__name__)
    reference = load_reference("albert", "Model", tmp_path / "Backbone")
    theirs = run_reference(reference, inputs).last_hidden_state.numpy()
    load_reference("albert", "ForSequenceClassification", tmp_path / "TextClassifier")
    found = keras.ops.convert_to_numpy(model(inputs)["sequence_output"])
    again = kbf.Backbone.from_preset(tmp_path / "TextClassifier")
    assert again.get_config() == model.get_config()
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(again(inputs)["sequence_output"]), found)
    reference.save_pretrained(tmp_path / "theirs")  # with the field that says what is shared
    for one, other in zip(
        kbf.Backbone.from_preset(tmp_path / "theirs").get_weights(),
        kbf.Backbone.from_preset(tmp_path / "Backbone").get_weights(),
        strict=True,
    ):
        np.testing.assert_array_equal(one, other)
    expected = kbf.Backbone.from_preset(tmp_path / "Backbone")(inputs)["sequence_output"]
    np.testing.assert_allclose(keras.ops.convert_to_numpy(expected)[mask], theirs[mask], atol=TOLERANCE)
    assert max(model.find_depths().values()) == 3 and len(model.find_depths()) == len(model.weights) - 2
    with pytest.raises(ValueError, match="a block of its own. Received: num_groups=1, num_layers=3. Set"):
        make_backbone("albert", num_layers=3, sharing=sharing)
    with pytest.raises(ValueError, match="must be one of all, attention, feed_forward. Received: sharing='x'"):
        make_backbone("albert", sharing="x")


@pytest.mark.slow
@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("sharing", "millions"), [pytest.param("attention", 64, marks=pytest.mark.slow), ("feed_forward", 38), ("all", 12)]
)
def test_partial_sharing_has_the_sizes_of_the_paper(sharing, millions):
    """Lan et al. 2020, table 4, embeddings of 128; the numbers there are rounded."""
    groups = 1 if sharing == "all" else 12
    sizes = {"num_layers": 12, "num_heads": 12, "hidden_dim": 768, "intermediate_dim": 3072}
    model = kbf.Backbone("albert", vocabulary_size=30000, num_groups=groups, sharing=sharing, **sizes)
    assert model.count_params() / 1e6 == pytest.approx(millions, abs=0.5)


def test_electra_without_narrow_embeddings_has_no_layer_to_widen_them(tmp_path):
    model, inputs = randomise(make_backbone("electra", embedding_dim=SMALL["hidden_dim"])), make_ids(make_inputs())
    model.save_to_preset(tmp_path / "ours")
    reference = load_reference("electra", "Model", tmp_path / "ours")
    theirs, mask = run_reference(reference, inputs), inputs["padding_mask"].astype(bool)
    found = keras.ops.convert_to_numpy(model(inputs)["sequence_output"])
    np.testing.assert_allclose(found[mask], theirs.last_hidden_state.numpy()[mask], atol=TOLERANCE)
    reference.save_pretrained(tmp_path / "theirs")
    again = kbf.Backbone.from_preset(tmp_path / "theirs")
    assert again.get_config() == model.get_config()


@pytest.mark.slow_compiled
def test_a_head_on_the_bag_of_words_is_as_wide_as_the_embeddings(tmp_path):
    model = kbf.TextClassifier(make_backbone("albert", embedding_dim=9, use_pooler=False), 3, pooling="bag_of_words")
    randomise(model).save_to_preset(tmp_path)
    again = load_task_model("classification", tmp_path, needs_head=True)
    for one, other in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_settings_that_a_family_has_no_field_for_are_fixed():
    for setting in ({"num_segments": 2}, {"layer_norm_epsilon": 1e-6}):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{next(iter(setting))}'"):
            make_backbone("distilbert", **setting)


def test_roberta_without_a_position_for_a_token_is_refused(tmp_path):
    make_backbone("roberta").save_to_preset(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 2, "pad_token_id": 1}))
    with pytest.raises(ValueError, match="must be above 2.*Received: max_position_embeddings=2"):
        kbf.Backbone.from_preset(tmp_path)


@pytest.mark.slow_compiled
def test_released_roberta_counts_its_positions_from_2(tmp_path):
    config = transformers.RobertaConfig(
        vocab_size=50,
        num_hidden_layers=1,
        num_attention_heads=3,
        hidden_size=24,
        intermediate_size=40,
        max_position_embeddings=18,
        type_vocab_size=1,
    )
    reference = transformers.RobertaModel(config).eval()
    reference.save_pretrained(tmp_path)
    model = kbf.Backbone.from_preset(tmp_path)
    assert (model.max_positions, model.shape.position_offset, model.pad_token_id) == (16, 2, 1)
    ids = np.arange(2, 18, dtype="int32")[None]  # as long as can be, no padding token among them
    inputs = {"token_ids": ids, "segment_ids": np.ones_like(ids), "padding_mask": np.ones_like(ids)}
    expected = run_reference(reference, inputs).last_hidden_state.numpy()
    np.testing.assert_allclose(keras.ops.convert_to_numpy(model(inputs)["sequence_output"]), expected, atol=TOLERANCE)
    model.save_to_preset(tmp_path / "again")
    written = json.loads((tmp_path / "again" / "config.json").read_text())
    assert (written["max_position_embeddings"], written["pad_token_id"]) == (18, 1)

"""ModernBERT beside `transformers`: windows, both spellings of its configuration, heads, and published sizes."""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.conversion.convert import convert
from keras_bert_flow.conversion.directory_files import make_hf_config, read_hf_config, read_shape
from keras_bert_flow.conversion.model_directory import load_task_model
from keras_bert_flow.conversion.tables.table import find_table
from keras_bert_flow.models.families.modernbert import ModernBertShape
from tests.contracts import TOLERANCE, assert_packed_as_alone, load_reference, make_ids, randomise, run_reference
from tests.oracles.other_tokenizers import make_modern
from tests.oracles.small_bert import LENGTHS, SMALL, make_inputs
from tests.oracles.task_models import CASES, call, make_task_inputs

torch = pytest.importorskip("torch", reason="the reference needs torch")
transformers = pytest.importorskip("transformers", reason="the reference needs transformers")

REAL = np.array(LENGTHS) > 0
SPELLINGS = {"old": ("layer_types", "rope_parameters"), "new": ()}  # what a folder of `transformers` 5 then lacks
# Global layers 0, 2 and 4; a token of a local layer sees two on each side.
SIZES = {
    "vocab_size": 50,
    "num_hidden_layers": 5,
    "num_attention_heads": 3,
    "hidden_size": 24,
    "intermediate_size": 42,
    "max_position_embeddings": 16,
    "local_attention": 5,
    "global_attn_every_n_layers": 2,
    "global_rope_theta": 50.0,
    "local_rope_theta": 3.0,
    "pad_token_id": 0,
    "cls_token_id": 2,
    "sep_token_id": 3,
}
BIASED = {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True}
OURS = {"num_layers": 5, "local_attention": 5, "global_every": 2, "global_theta": 50.0, "local_theta": 3.0}


def make_backbone(**settings):
    return kbf.Backbone("modernbert", **SMALL | OURS | settings)


def make_reference(head, **settings):
    """Return a small model of `transformers` with all weights random."""
    config = transformers.ModernBertConfig(**SIZES | settings, attn_implementation="eager")
    model = getattr(transformers, f"ModernBert{head}")(config).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for name, value in model.named_parameters():
            torch.nn.init.normal_(value, float("norm.weight" in name), 0.2)
    return model


def spell(folder, spelling):
    """Leave one spelling in the `config.json` of `transformers` 5, which has the new one and `global_attn...`."""
    config = json.loads((folder / "config.json").read_text())
    for name in SPELLINGS[spelling]:
        del config[name]
    old = {"global_rope_theta": 50.0, "local_rope_theta": 3.0, "global_attn_every_n_layers": 2}
    config = config | old if spelling == "old" else {name: value for name, value in config.items() if name not in old}
    (folder / "config.json").write_text(json.dumps(config))


def assert_same_weights(one, other):
    for theirs, ours in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(theirs, ours)


@pytest.mark.slow_compiled
@pytest.mark.parametrize(
    ("spelling", "settings"),
    [
        ("old", {}),
        ("new", BIASED | {"classifier_activation": "relu", "hidden_activation": "silu"}),
    ],
    ids=["old", "new_biased"],
)
def test_masked_lm_travels_both_ways(tmp_path, spelling, settings):
    reference = make_reference("ForMaskedLM", **settings)
    reference.save_pretrained(tmp_path / "theirs")
    spell(tmp_path / "theirs", spelling)
    model = kbf.MaskedLM.from_preset(tmp_path / "theirs")
    assert {name: getattr(model.backbone, name) for name in OURS} == OURS
    inputs = make_ids(make_inputs(masks_per_sequence=3))
    positions, expected = inputs["mask_positions"], run_reference(reference, inputs).logits.numpy()
    wanted = np.take_along_axis(expected, positions[..., None], axis=1)
    is_real = np.array(LENGTHS)[:, None] > positions
    np.testing.assert_allclose(call(model, inputs)["mlm"][is_real], wanted[is_real], atol=TOLERANCE)
    model.save_to_preset(tmp_path / "ours")
    again = load_reference("ModernBertForMaskedLM", tmp_path / "ours")
    for (name, one), other in zip(reference.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other), name
    written, before = again.config.to_dict(), reference.config.to_dict()
    others = ("dtype", "architectures", "_name_or_path")
    numbers = [name for name in before if not name.endswith("token_id") and name not in others]
    assert {name: written[name] for name in numbers} == {name: before[name] for name in numbers}


@pytest.mark.any_backend
def test_long_rows_are_computed_in_blocks_as_transformers_computes_them(tmp_path):
    make_reference("Model", local_attention=33, max_position_embeddings=128).save_pretrained(tmp_path)
    backbone = kbf.Backbone.from_preset(tmp_path)
    assert backbone.shape.find_pattern(1).find_block(100) == 16
    ids = np.random.default_rng(3).integers(5, 50, (2, 100)).astype("int32")
    inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": np.ones_like(ids)}
    inputs["padding_mask"][1, 70:] = 0
    expected = run_reference(load_reference("ModernBertModel", tmp_path), inputs).last_hidden_state.numpy()
    real = inputs["padding_mask"] > 0
    np.testing.assert_allclose(call(backbone, inputs)["sequence_output"][real], expected[real], atol=TOLERANCE)


@pytest.mark.any_backend
def test_both_spellings_are_written_and_the_newer_one_counts():
    written = make_hf_config(asdict(ModernBertShape(**SMALL | OURS)) | {"family": "modernbert"}, "Model")
    kinds = ["full_attention", "sliding_attention"] * 2 + ["full_attention"]
    assert written["layer_types"] == kinds
    rope = {"full_attention": 50.0, "sliding_attention": 3.0}
    assert written["rope_parameters"] == {
        kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in rope.items()
    }
    assert {name: written[name] for name in ("global_rope_theta", "local_rope_theta")} == {
        "global_rope_theta": 50.0,
        "local_rope_theta": 3.0,
    }
    assert written["global_attn_every_n_layers"] == 2
    read = read_hf_config(written | {"global_attn_every_n_layers": 3, "global_rope_theta": 9.0}, "config.json")
    assert (read["global_every"], read["global_theta"]) == (2, 50.0)
    assert transformers.ModernBertConfig(**written).layer_types == kinds


@pytest.mark.any_backend
def test_missing_fields_are_those_of_the_published_model():
    shape = read_shape({"model_type": "modernbert"}, "config.json")
    assert shape == ModernBertShape(50368, 22, 12, 768, 1152, pad_token_id=50283)
    expected = transformers.ModernBertConfig().to_dict()
    written = make_hf_config(asdict(shape) | {"family": "modernbert"}, "Model")
    others = {"architectures", "dtype", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"}
    names = (written.keys() & expected.keys()) - others
    assert {name: written[name] for name in names} == {name: expected[name] for name in names}


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"layer_types": ["sliding_attention", "full_attention"]}, "`layer_types` must name each layer.* Received: "),
        ({"layer_types": ["full_attention"]}, "`layer_types` must name each layer"),
        ({"layer_types": [], "num_hidden_layers": 0}, "`num_hidden_layers` must be a positive whole number"),
        ({"layer_types": "full_attention"}, "`layer_types` must name each layer"),
        ({"rope_parameters": {"full_attention": {"rope_type": "yarn"}}}, "must be of the type 'default'"),
        ({"rope_parameters": {"full_attention": 3}}, "must be of the type 'default'"),
        ({"rope_parameters": [3]}, "must be of the type 'default'"),
        ({"decoder_bias": False}, "`decoder_bias` must be True. Received: decoder_bias=False"),
        ({"rope_scaling": {"type": "linear"}}, "`rope_scaling` must be None"),
        ({"hidden_activation": "tanh"}, "`hidden_activation` must be one of"),
        ({"classifier_activation": "tanh"}, "`classifier_activation` must be one of"),
        ({"local_attention": 0}, "`local_attention` must be a positive whole number"),
        ({"num_attention_heads": 256}, "Rotated heads must have an even width"),
        ({"global_rope_theta": 0}, "`theta` must be above 0"),
    ],
)
def test_other_variants_are_refused(fields, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_shape({"model_type": "modernbert", "num_hidden_layers": 2} | fields, "config.json")
    assert "\n" not in str(caught.value)


@pytest.mark.any_backend
@pytest.mark.parametrize(("layers", "every"), [(1, 3), (3, 5), (4, 1), (7, 3)])
def test_layer_types_say_which_layers_are_global(layers, every):
    shape = ModernBertShape(50, layers, 3, 24, 40, global_every=every)
    written = make_hf_config(asdict(shape) | {"family": "modernbert"}, "Model")
    assert read_shape(written, "config.json") == shape
    del written["global_attn_every_n_layers"]
    again = read_shape(written, "config.json")
    for number in range(layers):
        assert again.find_pattern(number) == shape.find_pattern(number)
        assert again.find_positions(number) == shape.find_positions(number)


@pytest.mark.slow_compiled
@pytest.mark.parametrize("kind", ["classification", "multiple_choice"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_poolings_are_those_of_transformers(tmp_path, kind, pooling):
    head = {"classification": "ForSequenceClassification", "multiple_choice": "ForMultipleChoice"}[kind]
    model = randomise(CASES[kind].make(make_backbone(use_pooler=pooling == "cls"), pooling=pooling))
    model.save_to_preset(tmp_path / "ours")
    reference = load_reference(f"ModernBert{head}", tmp_path / "ours")
    assert reference.config.classifier_pooling == pooling
    inputs = make_ids(make_task_inputs(kind))
    real = inputs["padding_mask"].any(axis=-1)
    expected = run_reference(reference, inputs).logits.numpy()[real]
    np.testing.assert_allclose(call(model, inputs)["output"][real], expected, atol=TOLERANCE)
    reference.save_pretrained(tmp_path / "theirs")
    assert_same_weights(load_task_model(kind, tmp_path / "theirs", needs_head=True), model)


@pytest.mark.any_backend
def test_a_head_of_a_task_starts_from_that_of_the_masked_lm(tmp_path):
    masked = randomise(kbf.MaskedLM(make_backbone(use_pooler=False)))
    masked.save_to_preset(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text()) | {"classifier_pooling": "mean"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = kbf.TextClassifier.from_preset(tmp_path, num_classes=2)
    assert model.pooling == "mean"  # as `transformers` would pool
    for ours, theirs in (("dense", "dense"), ("layer_norm", "layer_norm")):
        kept, source = getattr(model.get_layer("head"), ours), getattr(masked.get_layer("mlm_transform"), theirs)
        assert_same_weights(kept, source)
    assert kbf.TextClassifier.from_preset(tmp_path, num_classes=2, pooling="cls").pooling == "cls"
    tagger = kbf.TokenClassifier.from_preset(tmp_path, num_classes=2)
    randomise(tagger).save_to_preset(tmp_path / "tagger")
    # Heads of one name and one shape are told apart by the class.
    with pytest.raises(ValueError, match="there is no question answerer in it"):
        load_task_model("question_answering", tmp_path / "tagger", needs_head=True)
    randomise(kbf.Backbone.from_preset(tmp_path)).save_to_preset(tmp_path / "encoder")
    assert kbf.TextClassifier.from_preset(tmp_path / "encoder", num_classes=2).pooling == "cls"


# Pieces, layers, heads, both widths, and the number of weights without a head.
PUBLISHED = {
    "ettin-17m": (50368, 7, 4, 256, 384, 16_797_440),
    "ettin-32m": (50368, 10, 6, 384, 576, 31_883_136),
    "ettin-68m": (50368, 19, 8, 512, 768, 68_144_640),
    "ettin-150m, ModernBERT-base": (50368, 22, 12, 768, 1152, 149_014_272),
    "ettin-400m, ModernBERT-large": (50368, 28, 16, 1024, 2624, 394_781_696),
    "ettin-1b": (50368, 28, 28, 1792, 3840, 1_028_050_688),
    "mmBERT-small": (256_000, 22, 6, 384, 1152, 140_493_696),
    "mmBERT-base": (256_000, 22, 12, 768, 1152, 306_939_648),
}


@pytest.mark.any_backend
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_as_many_weights(name):
    *sizes, expected = PUBLISHED[name]
    shape = ModernBertShape(*sizes)
    tensors = dict(find_table("modernbert").list_sizes(shape))
    assert sum(math.prod(getattr(shape, size) for size in names) for names in tensors.values()) == expected
    with torch.device("meta"):
        reference = transformers.ModernBertModel(
            transformers.ModernBertConfig(**make_hf_config(asdict(shape) | {"family": "modernbert"}, "Model"))
        )
    theirs = {name: tuple(value.shape) for name, value in reference.named_parameters()}
    assert theirs == {name: tuple(getattr(shape, size) for size in sizes) for name, sizes in tensors.items()}


@pytest.mark.slow
def test_base_and_its_heads_have_as_many_weights():
    names = ("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim")
    sizes = dict(zip(names, PUBLISHED["ettin-150m, ModernBERT-base"], strict=False))
    backbone = kbf.Backbone("modernbert", **sizes, use_pooler=False)
    assert backbone.count_params() == 149_014_272
    assert kbf.MaskedLM(backbone).count_params() == 149_655_232
    assert kbf.TextClassifier(backbone, 2, pooling="mean").count_params() == 149_606_402


@pytest.mark.any_backend
def test_packed_texts_are_as_alone():
    assert_packed_as_alone(randomise(make_backbone()))


@pytest.mark.any_backend
def test_masks_are_filled_as_in_transformers(tmp_path):
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=make_modern(), **names)
    pieces, rows = len(fast), 384  # rows are padded to a multiple of 64
    special = {name: fast.convert_tokens_to_ids(f"[{name[:3].upper()}]") for name in ("pad_token_id", "cls_token_id")}
    reference = make_reference("ForMaskedLM", vocab_size=rows, max_position_embeddings=64, **special)
    for part in (reference, fast):
        part.save_pretrained(tmp_path / "theirs")
    texts = ["The owner [MASK] the  shop  [MASK].", "[MASK] e\u0301t[MASK]"]
    asked = fast(texts, return_tensors="pt", padding=True)
    with torch.no_grad():
        logits = reference(asked["input_ids"], attention_mask=asked["attention_mask"]).logits
    expected = logits[asked["input_ids"] == fast.mask_token_id][:, :pieces].softmax(-1).numpy()
    filler = kbf.load(tmp_path / "theirs", task="fill_mask", top_k=pieces)
    found = [{fill["token"]: fill["score"] for fill in fills} for text in filler.predict(texts) for fills in text]
    assert len(found) == len(expected) == 4
    for fills, scores in zip(found, expected, strict=True):
        np.testing.assert_allclose([fills[number] for number in range(pieces)], scores, atol=1e-6)
    backbone = kbf.MaskedLM.from_preset(tmp_path / "theirs")
    assert (backbone.backbone.pad_token_id, backbone.backbone.num_pieces) == (fast.pad_token_id, pieces)
    backbone.save_to_preset(tmp_path / "ours")  # with the tokenizer
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert again(texts)["input_ids"] == fast(texts)["input_ids"]


@pytest.mark.any_backend
def test_layers_are_left_out_only_if_the_others_keep_their_attention(tmp_path):
    model = randomise(make_backbone())
    model.save_to_preset(tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "fewer", layers=[0, 1, 4, 3])
    fewer = kbf.Backbone.from_preset(tmp_path / "fewer")
    assert fewer.num_layers == 4
    assert_same_weights(fewer.blocks[2], model.blocks[4])
    with pytest.raises(ValueError, match="must keep their attention"):
        convert(tmp_path / "model", tmp_path / "others", layers=[0, 2])
    with pytest.raises(ValueError, match="must keep their attention"):
        convert(tmp_path / "model", tmp_path / "others", layers=[2, 1])
    convert(tmp_path / "model", tmp_path / "longer", positions=64)
    longer = kbf.Backbone.from_preset(tmp_path / "longer")
    assert longer.max_positions == 64
    assert_same_weights(longer, model)

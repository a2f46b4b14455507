"""DeBERTa-v2 and -v3 beside `transformers`: positions, the convolution, both heads, its fields, published sizes."""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_bert_flow as kbf
from keras_bert_flow.conversion.directory_files import make_hf_config, read_shape
from keras_bert_flow.conversion.tables.table import find_table
from keras_bert_flow.layers.positions import find_buckets
from keras_bert_flow.models.families.deberta import DebertaShape
from tests.contracts import TOLERANCE, assert_packed_as_alone, load_reference, make_ids, randomise, run_reference
from tests.oracles.small_bert import LENGTHS, SMALL, make_inputs
from tests.oracles.task_models import call

torch = pytest.importorskip("torch", reason="the reference needs torch")
transformers = pytest.importorskip("transformers", reason="the reference needs transformers")

SIZES = {
    "vocab_size": 50,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "hidden_size": 24,
    "intermediate_size": 42,
    "max_position_embeddings": 16,
}
# v3, but for its number of buckets: of 4, the distances from 2 on are shared logarithmically
V3 = {"relative_attention": True, "position_buckets": 4, "norm_rel_ebd": "layer_norm", "share_att_key": True}
V3 |= {"pos_att_type": "p2c|c2p", "position_biased_input": False}
V2 = V3 | {"conv_kernel_size": 3, "conv_act": "gelu"}
KINDS = {
    "v3": V3,
    "v2": V2,
    "own_projections": V3 | {"share_att_key": False, "norm_rel_ebd": "none"},
    "to_position": V3 | {"share_att_key": False, "pos_att_type": ["c2p"], "max_relative_positions": 9},
    "to_content": V2 | {"pos_att_type": "p2c", "conv_kernel_size": 5, "conv_act": "tanh"},
    "each_distance": V3 | {"position_buckets": -1, "max_relative_positions": 5},
    "absolute": {"relative_attention": False, "position_biased_input": True, "type_vocab_size": 2},
    "narrow": V3 | {"embedding_size": 9, "position_biased_input": True, "type_vocab_size": 1},
}
DEFAULT = {"v3", "v2"}


def make_backbone(**settings):
    return kbf.Backbone("deberta-v2", **SMALL | {"position_buckets": 4, "convolution_width": 3} | settings)


def make_reference(head, **settings):
    """Return a small model of `transformers` with all weights random."""
    model = getattr(transformers, f"DebertaV2{head}")(transformers.DebertaV2Config(**SIZES | settings)).eval()
    torch.manual_seed(1)
    with torch.no_grad():
        for name, value in model.named_parameters():
            torch.nn.init.normal_(value, float("LayerNorm.weight" in name), 0.2)
    return model


def assert_same_masked_lm(model, reference):
    inputs = make_ids(make_inputs(masks_per_sequence=3))
    positions, expected = inputs["mask_positions"], run_reference(reference, inputs).logits.numpy()
    wanted = np.take_along_axis(expected, positions[..., None], axis=1)
    is_real = np.array(LENGTHS)[:, None] > positions
    np.testing.assert_allclose(call(model, inputs)["mlm"][is_real], wanted[is_real], atol=TOLERANCE)


@pytest.mark.slow_compiled
@pytest.mark.parametrize(
    "kind", [name if name in DEFAULT else pytest.param(name, marks=pytest.mark.slow) for name in KINDS]
)
def test_masked_lm_travels_both_ways(tmp_path, kind):
    reference = make_reference("ForMaskedLM", **KINDS[kind])
    reference.save_pretrained(tmp_path / "theirs")
    model = kbf.MaskedLM.from_preset(tmp_path / "theirs")
    assert_same_masked_lm(model, reference)
    model.save_to_preset(tmp_path / "ours")
    again = load_reference("DebertaV2ForMaskedLM", tmp_path / "ours")
    for (name, one), other in zip(reference.named_parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other), name
    written, before = again.config.to_dict(), reference.config.to_dict()
    free = ("dtype", "architectures", "_name_or_path", "norm_rel_ebd", "pos_att_type")
    names = [name for name in before if name not in free]
    assert {name: written[name] for name in names} == {name: before[name] for name in names}
    assert sorted(written["pos_att_type"]) == sorted(before["pos_att_type"] or [])
    assert written["norm_rel_ebd"] == before.get("norm_rel_ebd", "none")
    assert written["embedding_size"] == before.get("embedding_size", 24)


@pytest.mark.any_backend
def test_head_of_microsoft_is_read_and_written_as_transformers_reads_it(tmp_path):
    reference = make_reference("ForMaskedLM", **V3, legacy=False)
    reference.save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "model.safetensors"
    tensors = load_file(path)
    assert {name for name in tensors if name.startswith("lm_predictions.")} == {
        f"lm_predictions.lm_head.{name}"
        for name in ("bias", "dense.weight", "dense.bias", "LayerNorm.weight", "LayerNorm.bias")
    }
    # Its files also hold positions of the enhanced mask decoder, and the head of the detector.
    others = {"deberta.embeddings.position_embeddings.weight": (16, 24), "mask_predictions.dense.weight": (24, 24)}
    save_file(
        tensors | {name: np.ones(size, "float32") for name, size in others.items()}, path, metadata={"format": "pt"}
    )
    model = kbf.MaskedLM.from_preset(tmp_path / "theirs")
    assert_same_masked_lm(model, reference)
    model.save_to_preset(tmp_path / "ours")
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["legacy"] is True
    assert_same_masked_lm(model, load_reference("DebertaV2ForMaskedLM", tmp_path / "ours"))


@pytest.mark.any_backend
@pytest.mark.parametrize("most", [16, 512, 2048])
@pytest.mark.parametrize("buckets", [4, 32, 256])
def test_buckets_are_those_of_transformers(buckets, most):
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    if most <= buckets // 2 + 1:
        pytest.skip("all distances have their own")
    distances = np.arange(-2047, 2048)
    theirs = make_log_bucket_position(torch.tensor(distances), buckets, most).long().numpy()  # float32
    ours = find_buckets(buckets, most)[np.clip(distances, -most, most) + most]
    np.testing.assert_array_equal(ours, np.clip(theirs + buckets, 0, 2 * buckets - 1))


@pytest.mark.any_backend
@pytest.mark.parametrize("length", [5, 16])
def test_long_and_short_rows_are_as_in_transformers(tmp_path, length):
    """Up to twice the buckets, and beyond all distances that have their own."""
    make_reference("Model", **V2).save_pretrained(tmp_path)
    backbone = kbf.Backbone.from_preset(tmp_path)
    ids = np.random.default_rng(3).integers(5, 50, (2, length)).astype("int32")
    inputs = {"token_ids": ids, "segment_ids": 0 * ids, "padding_mask": np.ones_like(ids)}
    inputs["padding_mask"][1, length // 2 :] = 0
    expected = run_reference(load_reference("DebertaV2Model", tmp_path), inputs).last_hidden_state.numpy()
    real = inputs["padding_mask"] > 0
    np.testing.assert_allclose(call(backbone, inputs)["sequence_output"][real], expected[real], atol=TOLERANCE)


@pytest.mark.any_backend
def test_packed_texts_are_as_alone():
    assert_packed_as_alone(randomise(make_backbone(has_position_embeddings=True)))


@pytest.mark.any_backend
def test_missing_fields_are_those_of_transformers():
    shape = read_shape({"model_type": "deberta-v2"}, "config.json")
    assert (shape.position_terms, shape.has_position_embeddings, shape.num_segments) == ("", True, 0)
    expected = transformers.DebertaV2Config().to_dict()
    written = make_hf_config(asdict(shape) | {"family": "deberta-v2"}, "Model")
    names = (written.keys() & expected.keys()) - {"architectures", "dtype", "pos_att_type"}
    assert {name: written[name] for name in names} == {name: expected[name] for name in names}


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pos_att_type": "p2p"}, "`pos_att_type` must name c2p, p2c or both. Received: pos_att_type='p2p'"),
        ({"pos_att_type": [3]}, "`pos_att_type` must name"),
        ({"pos_att_type": 3}, "`pos_att_type` must name"),
        ({"pos_att_type": "c2p"}, "`relative_attention` must be true where `pos_att_type` names a term"),
        ({"relative_attention": True}, "`relative_attention` must be true where .* false elsewhere"),
        ({"norm_rel_ebd": 3}, "`norm_rel_ebd` must be a text"),
        ({"attention_head_size": 32}, "`attention_head_size` must be that of"),
        ({"conv_groups": 2}, "`conv_groups` must be 1"),
        ({"pooler_hidden_act": "tanh"}, "`pooler_hidden_act` must be 'gelu'"),
        ({"conv_kernel_size": 2}, "`convolution_width` must be odd"),
        ({"conv_act": "mish"}, "`convolution_act` must be one of"),
        ({"share_att_key": 1}, "`share_att_key` must be true or false"),
        ({"position_buckets": "many"}, "`position_buckets` must be a whole number"),
        (V3 | {"max_relative_positions": 3}, "`max_distance` must be above half of `num_buckets`"),
    ],
)
def test_other_variants_are_refused(fields, message):
    with pytest.raises(ValueError, match=message) as caught:
        read_shape({"model_type": "deberta-v2", "num_hidden_layers": 2} | fields, "config.json")
    assert "\n" not in str(caught.value)


# Pieces, layers, heads, both widths, other fields, and the number of weights without a head.
CONVOLUTION = {"convolution_width": 3, "convolution_act": "gelu"}
PUBLISHED = {
    "v3-xsmall": (128_100, 12, 6, 384, 1536, {}, 70_682_112),
    "v3-small": (128_100, 6, 12, 768, 3072, {}, 141_304_320),
    "v3-base": (128_100, 12, 12, 768, 3072, {}, 183_831_552),
    "v3-large": (128_100, 24, 16, 1024, 4096, {}, 434_012_160),
    "mdeberta-v3-base": (251_000, 12, 12, 768, 3072, {}, 278_218_752),
    "v2-xlarge": (128_100, 24, 24, 1536, 6144, CONVOLUTION, 884_593_152),
}


@pytest.mark.any_backend
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_models_have_as_many_weights(name):
    *sizes, fields, expected = PUBLISHED[name]
    shape = DebertaShape(*sizes, **fields)
    tensors = dict(find_table("deberta-v2").list_sizes(shape))
    assert sum(math.prod(getattr(shape, size) for size in names) for names in tensors.values()) == expected
    config = make_hf_config(asdict(shape) | {"family": "deberta-v2"}, "Model")
    with torch.device("meta"):
        reference = transformers.DebertaV2Model(transformers.DebertaV2Config(**config))
    theirs = {name: tuple(value.shape) for name, value in reference.named_parameters()}
    assert theirs == {name: tuple(getattr(shape, size) for size in sizes) for name, sizes in tensors.items()}


@pytest.mark.slow
def test_base_and_its_heads_have_as_many_weights():
    names = ("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim")
    sizes = dict(zip(names, PUBLISHED["v3-base"], strict=False))
    backbone = kbf.Backbone("deberta-v2", **sizes, use_pooler=False)
    assert backbone.count_params() == 183_831_552
    assert kbf.MaskedLM(backbone).count_params() == 184_551_780
    pooled = kbf.Backbone("deberta-v2", **sizes, use_pooler=True)
    assert kbf.TextClassifier(pooled, 2).count_params() == 184_423_682

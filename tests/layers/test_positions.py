"""Positions within attention equal those of `transformers`: ModernBERT, BLOOM, XLNet and DeBERTa-v2."""

from dataclasses import replace

import keras
import numpy as np
import pytest

from keras_bert_flow.backends import rotation
from keras_bert_flow.layers.attention import MultiHeadSelfAttention
from keras_bert_flow.layers.patterns import Alibi, Disentangled, Rotary, TransformerXL
from keras_bert_flow.layers.positions import alibi_bias, find_buckets, make_sinusoids, rotate_fused, shift_distances
from keras_bert_flow.layers.shape import EncoderShape

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

HEADS, WIDTH, LENGTH = 3, 24, 9
SHAPE = EncoderShape(vocabulary_size=50, num_layers=2, num_heads=HEADS, hidden_dim=WIDTH, intermediate_dim=20)
RNG = np.random.default_rng(2)
HIDDEN = RNG.normal(size=(2, LENGTH, WIDTH)).astype("float32")
MASK = np.array([[1] * LENGTH, [1] * 6 + [0] * 3], "int32")


def read(tensor):
    return keras.ops.convert_to_numpy(tensor)


def rotate(vectors, theta):
    """Return vectors, (batch, heads, length, head_dim), rotated as queries; keys are as well, values are not."""
    batch, heads, length, width = vectors.shape
    fused = np.stack([vectors.transpose(0, 2, 1, 3)] * 3, axis=3).reshape(batch, length, -1)
    found = read(rotate_fused(keras.ops.convert_to_tensor(fused), heads, theta))
    query, key, value = np.moveaxis(found.reshape(batch, length, heads, 3, width).transpose(0, 2, 1, 3, 4), 3, 0)
    np.testing.assert_array_equal(query, key)
    np.testing.assert_array_equal(value, vectors)
    return query


def draw(*shape):
    return RNG.normal(scale=0.3, size=shape).astype("float32")


def set_projections(layer, parts, biases):
    """Give the fused projection query, key and value, each (inputs, heads, head_dim), in the order of its columns."""
    layer.query_key_value.kernel.assign(np.stack(parts, axis=2).reshape(WIDTH, 3 * WIDTH))
    layer.query_key_value.bias.assign(np.stack(biases, axis=1).reshape(3 * WIDTH))


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="only on PyTorch are rows rotated a few at a time")
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-6), ("bfloat16", 0.02)])  # 0.02: one unit near 4
def test_rotation_of_a_few_rows_at_a_time_has_values_and_gradients_of_the_plain_one(monkeypatch, dtype, tolerance):
    monkeypatch.setattr(rotation, "CACHED", 2 * LENGTH * 3 * WIDTH)  # two of five rows, and one at the end
    values, gradient = (torch.tensor(draw(5, LENGTH, 3 * WIDTH)).to(getattr(torch, dtype)) for _ in range(2))
    found = []
    for is_at_hand in (True, False):
        monkeypatch.setattr(rotation, "_is_at_hand", lambda fused, is_at_hand=is_at_hand: is_at_hand)
        fused = values.clone().requires_grad_()
        rotated = rotate_fused(fused, HEADS, 100.0)
        rotated.backward(gradient)
        assert rotated.dtype == fused.grad.dtype == values.dtype
        found.append([tensor.detach().float().numpy() for tensor in (rotated, fused.grad)])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, atol=tolerance)


@pytest.mark.any_backend
@pytest.mark.parametrize("theta", [10000.0, 160000.0])
def test_rotation_is_that_of_modernbert(theta):
    from transformers.models.modernbert import modeling_modernbert as theirs

    config = transformers.ModernBertConfig(hidden_size=48, num_attention_heads=3, global_rope_theta=theta)
    config.rope_parameters["full_attention"]["rope_theta"] = theta
    vectors = RNG.normal(size=(2, 3, LENGTH, 16)).astype("float32")
    given = torch.tensor(vectors)
    cosines, sines = theirs.ModernBertRotaryEmbedding(config)(given, torch.arange(LENGTH)[None], "full_attention")
    expected, _ = theirs.apply_rotary_pos_emb(given, given, cosines, sines)
    np.testing.assert_allclose(rotate(vectors, theta), expected.numpy(), atol=1e-6)


@pytest.mark.any_backend
def test_rotated_scores_depend_on_distances_alone():
    query, key = (np.tile(draw(1, 1, 1, 16), (1, 1, LENGTH, 1)) for _ in range(2))
    query, key = (rotate(vectors, 100.0) for vectors in (query, key))
    scores = (query @ key.swapaxes(-1, -2))[0, 0]
    np.testing.assert_allclose(scores[1:, 1:], scores[:-1, :-1], atol=1e-5)
    assert np.abs(scores[0] - scores[0, 0])[1:].min() > 1e-3


def test_odd_heads_are_not_rotated():
    with pytest.raises(ValueError, match="must have an even width. Received: head_dim=5"):
        rotate(np.zeros((1, 1, 2, 5), "float32"), 10000.0)


@pytest.mark.any_backend
@pytest.mark.parametrize("heads", [1, 2, 8, 12, 20])
def test_slopes_are_those_of_bloom(heads):
    from transformers.models.bloom.modeling_bloom import build_alibi_tensor

    theirs = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32).reshape(heads, 2)[:, 1].numpy()
    bias = read(alibi_bias(4, heads))
    assert bias.shape == (1, heads, 4, 4)
    np.testing.assert_allclose(bias[0, :, 0, 1], -theirs, rtol=1e-6)
    np.testing.assert_allclose(bias[0, :, 3, 0], -3 * theirs, rtol=1e-6)
    np.testing.assert_array_equal(bias, bias.swapaxes(2, 3))


@pytest.mark.any_backend
def test_shifted_scores_are_of_the_distance_of_query_and_key():
    distances = np.broadcast_to(np.arange(5, -5, -1, dtype="float32"), (1, 2, 5, 10))
    found = read(shift_distances(keras.ops.convert_to_tensor(distances)))
    np.testing.assert_array_equal(found[0, 1], np.arange(5)[:, None] - np.arange(5))
    assert tuple(make_sinusoids(5, 8).shape) == (10, 8)


@pytest.mark.any_backend
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(256, 512), (4, 16), (32, 64)])
def test_buckets_are_those_of_deberta(num_buckets, max_distance):
    from transformers.models.deberta_v2.modeling_deberta_v2 import make_log_bucket_position

    distances = torch.arange(-max_distance, max_distance + 1)
    theirs = make_log_bucket_position(distances, num_buckets, max_distance).long() + num_buckets
    ours = find_buckets(num_buckets, max_distance)
    np.testing.assert_array_equal(ours, np.clip(theirs.numpy(), 0, 2 * num_buckets - 1))


@pytest.mark.slow_compiled
def test_attention_is_that_of_xlnet():
    from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

    config = transformers.XLNetConfig(d_model=WIDTH, n_head=HEADS, n_layer=1, d_inner=20, vocab_size=50, dropout=0.0)
    theirs, model = XLNetRelativeAttention(config).eval(), XLNetModel(config)
    for parameter in theirs.parameters():
        parameter.data = torch.tensor(draw(*parameter.shape))
    theirs.layer_norm = torch.nn.Identity()
    mask = torch.tensor((MASK == 0).astype("float32")).T[None, :, :, None]  # (1, key, batch, 1)
    with torch.no_grad():
        sinusoids = model.relative_positional_encoding(LENGTH, LENGTH, bsz=2)
        hidden = torch.tensor(HIDDEN).transpose(0, 1)
        mask = mask.permute(0, 1, 2, 3).expand(LENGTH, -1, -1, -1)[..., 0:1]
        expected = theirs(hidden, None, mask, None, sinusoids, None)[0] - hidden
    layer = MultiHeadSelfAttention(SHAPE, positions=TransformerXL(), name="attention")
    layer.build((None, LENGTH, WIDTH))
    parts = [getattr(theirs, name).detach().numpy() for name in "qkv"]
    set_projections(layer, parts, np.zeros((3, HEADS, WIDTH // HEADS), "float32"))
    layer.relative_dense.kernel.assign(theirs.r.detach().numpy().reshape(WIDTH, WIDTH))
    layer.output_dense.kernel.assign(theirs.o.detach().numpy().reshape(WIDTH, WIDTH).T)
    layer.content_bias.assign(theirs.r_w_bias.detach().numpy()[:, None])
    layer.position_bias.assign(theirs.r_r_bias.detach().numpy()[:, None])
    np.testing.assert_allclose(read(layer(HIDDEN, MASK)), expected.transpose(0, 1).numpy(), atol=1e-5)


@pytest.mark.slow_compiled
@pytest.mark.parametrize(("num_buckets", "max_distance"), [(256, 512), (4, 16)])
def test_attention_is_that_of_deberta(num_buckets, max_distance):
    from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention

    config = transformers.DebertaV2Config(
        hidden_size=WIDTH,
        num_attention_heads=HEADS,
        relative_attention=True,
        position_buckets=num_buckets,
        max_relative_positions=max_distance,
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
    )
    theirs, table = DisentangledSelfAttention(config).eval(), draw(2 * num_buckets, WIDTH)
    for parameter in theirs.parameters():
        parameter.data = torch.tensor(draw(*parameter.shape))
    pairs = torch.tensor(MASK)[:, None, :, None] * torch.tensor(MASK)[:, None, None, :]
    with torch.no_grad():
        expected = theirs(torch.tensor(HIDDEN), pairs, rel_embeddings=torch.tensor(table))[0].numpy()
    positions = Disentangled(num_buckets, max_distance)
    layer = MultiHeadSelfAttention(SHAPE, positions=positions, name="attention")
    layer.build((None, LENGTH, WIDTH))
    projections = [getattr(theirs, name) for name in ("query_proj", "key_proj", "value_proj")]
    set_projections(
        layer,
        [projection.weight.detach().numpy().T.reshape(WIDTH, HEADS, -1) for projection in projections],
        [projection.bias.detach().numpy().reshape(HEADS, -1) for projection in projections],
    )
    layer.output_dense.kernel.assign(np.eye(WIDTH, dtype="float32"))
    found = read(layer(HIDDEN, MASK, relative=table))
    np.testing.assert_allclose(found[MASK > 0], expected[MASK > 0], atol=1e-5)


@pytest.mark.any_backend
@pytest.mark.parametrize("positions", [Rotary(), Alibi(), TransformerXL(), Disentangled(4, 16)], ids=repr)
def test_layer_comes_back_from_its_config(positions):
    layer = MultiHeadSelfAttention(replace(SHAPE, attention_dropout_rate=0.0), positions=positions, name="attention")
    relative = {"relative": draw(8, WIDTH)} if isinstance(positions, Disentangled) else {}
    expected = read(layer(HIDDEN, MASK, training=True, **relative))
    twin = MultiHeadSelfAttention.from_config(layer.get_config())
    twin.build((None, LENGTH, WIDTH))
    twin.set_weights(layer.get_weights())
    np.testing.assert_array_equal(read(twin(HIDDEN, MASK, training=True, **relative)), expected)

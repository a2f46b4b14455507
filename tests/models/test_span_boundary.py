"""Span boundary objective: both losses beside NumPy, what the head reads, and what is published."""

import keras
import numpy as np
import pytest
from scipy.special import erf

import keras_bert_flow as kbf
from keras_bert_flow.models.pretraining.span_boundary import PLACES, SpanBoundaryTransform
from keras_bert_flow.models.sizes import count_flops
from keras_bert_flow.text.objectives.mlm_sbo import MAX_SPAN_TARGETS
from keras_bert_flow.text.objectives.objective import find_objective
from tests.contracts import TOLERANCE, load_reference, run_layer_test, run_reference
from tests.oracles import numpy_bert
from tests.oracles.small_bert import SMALL

STILL = SMALL | {"num_layers": 1, "dropout_rate": 0.0, "attention_dropout_rate": 0.0}
# Two texts of [CLS], words and [SEP]: spans next to both ends, inside, and one that is alone in its text.
LENGTHS = (14, 9)
POSITIONS = [[1, 3, 4, 5, 8, 12], [4, 5, 0, 0, 0, 0]]
SPANS = [[1, 2, 2, 2, 3, 4], [1, 1, 0, 0, 0, 0]]
# (text, slot) → (left, right, place), of what is predicted from its boundaries
TARGETS = {
    (0, 1): (2, 6, 0),
    (0, 2): (2, 6, 1),
    (0, 3): (2, 6, 2),
    (0, 4): (7, 9, 0),
    (1, 0): (3, 6, 0),
    (1, 1): (3, 6, 1),
}


def make_pretrainer(seed=1, **options):
    model = kbf.SpanBoundaryPretrainer(kbf.BertBackbone(**STILL, use_pooler=False), **options)
    numpy_bert.randomise_weights(model, seed)
    return model


def make_batch(seed=3):
    rng = np.random.default_rng(seed)
    inside = np.arange(max(LENGTHS)) < np.array(LENGTHS)[:, None]
    predicted = np.array(SPANS) > 0
    features = {
        "input_ids": np.where(inside, rng.integers(1, 50, inside.shape), 0),
        "segment_ids": np.zeros_like(inside, int),
        "input_mask": inside.astype(int),
        "masked_lm_positions": np.array(POSITIONS),
        "masked_lm_ids": np.where(predicted, rng.integers(1, 50, predicted.shape), 0),
        "masked_lm_weights": predicted.astype("float32"),
        "masked_lm_span_ids": np.array(SPANS),
    }
    return find_objective("mlm_sbo").make_batch(features)


def sum_losses(model, x, y):
    """Return the sums of the masked-LM and the span boundary losses, and their numbers, as the paper writes them."""
    weights = numpy_bert.weights_of(model)
    states, _ = numpy_bert.forward(
        weights | {"pooler/dense/kernel": np.eye(24), "pooler/dense/bias": 0.0}, x, STILL["num_layers"], 3
    )
    sequence, table = states[-1], weights["token_embedding/embeddings"]

    def dense(inputs, name):
        hidden = inputs @ weights[f"{name}/kernel"] + weights[f"{name}/bias"]
        hidden = 0.5 * hidden * (1 + erf(hidden / np.sqrt(2)))
        norm = name.replace("dense", "layer_norm" if name.startswith("mlm") else "norm")
        centered = hidden - hidden.mean()
        scaled = centered / np.sqrt((centered**2).mean() + 1e-12)
        return scaled * weights[f"{norm}/gamma"] + weights[f"{norm}/beta"]

    def loss(hidden, bias, label):
        logits = table @ hidden + weights[bias]
        return np.log(np.exp(logits).sum()) - logits[label]

    masked = [(text, slot) for text, spans in enumerate(SPANS) for slot, span in enumerate(spans) if span]
    mlm = [
        loss(dense(sequence[text, POSITIONS[text][slot]], "mlm_transform/dense"), "mlm/bias", y["mlm"][text, slot])
        for text, slot in masked
    ]
    sbo = []
    for (text, slot), (left, right, place) in TARGETS.items():
        position = weights["sbo_transform/position_embedding"][place]
        hidden = np.concatenate([sequence[text, left], sequence[text, right], position])
        hidden = dense(dense(hidden, "sbo_transform/inner_dense"), "sbo_transform/outer_dense")
        sbo.append(loss(hidden, "sbo/bias", y["mlm"][text, slot]))
    return sum(mlm), len(mlm), sum(sbo), len(sbo)


@pytest.mark.slow_compiled
def test_losses_are_those_of_numpy():
    model, (x, y, weights) = make_pretrainer(), make_batch()
    mlm, masked, sbo, targets = sum_losses(model, x, y)
    assert (masked, targets) == (8, 6)
    outputs, (losses, _) = model.predict(x, verbose=0), model.make_losses_and_metrics()
    found = {name: float(loss(y[name], outputs[name], weights[name])) for name, loss in losses.items()}
    assert found["mlm"] == pytest.approx(mlm / masked, rel=1e-5)  # float32 sums
    assert found["sbo"] == pytest.approx(sbo / targets, rel=1e-5)
    # facebookresearch/SpanBERT divides by one more.
    assert found["sbo"] * targets / (targets + 1) == pytest.approx(sbo / (targets + 1), rel=1e-5)


@pytest.mark.any_backend
@pytest.mark.parametrize("weight", [1.0, 0.25])
def test_loss_is_the_weighted_sum_of_both(weight):
    model, (x, y, weights) = make_pretrainer(span_boundary_weight=weight), make_batch()
    mlm, masked, sbo, targets = sum_losses(model, x, y)
    model.compile()
    tested = model.test_on_batch(x, y, sample_weight=weights, return_dict=True)
    model.reset_metrics()
    trained = model.train_on_batch(x, y, sample_weight=weights, return_dict=True)
    for logs in (tested, trained):
        assert logs["loss"] == pytest.approx(mlm / masked + weight * sbo / targets, rel=1e-5)  # float32 sums
        assert logs["mlm_loss"] == pytest.approx(mlm / masked, rel=1e-5)
        assert logs["sbo_loss"] == pytest.approx(sbo / targets, rel=1e-5)


@pytest.mark.any_backend
def test_batch_without_targets_has_no_span_boundary_loss():
    model, (x, y, weights) = make_pretrainer(), make_batch()
    model.compile(keras.optimizers.SGD(0.1))
    weights = weights | {"sbo": np.zeros_like(weights["sbo"])}
    logs = model.train_on_batch(x, y, sample_weight=weights, return_dict=True)
    assert logs["sbo_loss"] == 0 and logs["loss"] == pytest.approx(logs["mlm_loss"]) and np.isfinite(logs["loss"])
    assert all(np.isfinite(value).all() for value in model.get_weights())


def test_head_does_not_read_the_masked_tokens():
    """Other states of all tokens but the boundaries change nothing; of a boundary they do."""
    transform = make_pretrainer().get_layer("sbo_transform")
    x, _, weights = make_batch()
    places = [x[name] for name in PLACES]
    sequence = np.random.default_rng(5).normal(size=(2, max(LENGTHS), SMALL["hidden_dim"])).astype("float32")

    def apply(states):
        return keras.ops.convert_to_numpy(transform(states, *places))[weights["sbo"] > 0]

    other = np.random.default_rng(6).normal(size=sequence.shape).astype("float32")
    is_boundary = np.zeros(sequence.shape[:2], bool)
    for (text, _), (left, right, _) in TARGETS.items():
        is_boundary[text, [left, right]] = True
    for text, positions in enumerate(POSITIONS):
        assert not is_boundary[text][[place for place in positions if place]].any()
    np.testing.assert_array_equal(apply(np.where(is_boundary[..., None], sequence, other)), apply(sequence))
    for text, place in np.argwhere(is_boundary):
        changed = sequence.copy()
        changed[text, place] = other[text, place]
        assert np.abs(apply(changed) - apply(sequence)).max() > 0.1


@pytest.mark.any_backend
def test_head_has_the_weights_of_the_paper():
    model, published = make_pretrainer(), make_pretrainer().find_published()
    hidden, vocabulary = SMALL["hidden_dim"], SMALL["vocabulary_size"]
    expected = (2 * hidden + 200) * hidden + hidden + 2 * hidden  # two states and a position, dense and norm
    expected += hidden * hidden + hidden + 2 * hidden + MAX_SPAN_TARGETS * 200 + vocabulary
    assert model.count_params() - published.count_params() == expected
    assert type(published) is kbf.MaskedLM and published.backbone.use_pooler is False


@pytest.mark.any_backend
@pytest.mark.parametrize("family", ["albert", "electra", "mobilebert"])
def test_encoders_with_narrow_embeddings_have_the_head(family):
    options = {"embedding_dim": 8} | ({"num_heads": 2} if family == "mobilebert" else {})
    shape = STILL | options
    model = kbf.SpanBoundaryPretrainer(kbf.Backbone(family, use_pooler=False, **shape))
    x, _, _ = make_batch()
    assert {name: value.shape for name, value in model.predict(x, verbose=0).items()} == {
        "mlm": (2, 6, 50),
        "sbo": (2, 6, 50),
    }


@pytest.mark.any_backend
def test_pooler_is_refused():
    with pytest.raises(ValueError, match="use_pooler"):
        kbf.SpanBoundaryPretrainer(kbf.BertBackbone(**SMALL))


@pytest.mark.any_backend
@pytest.mark.parametrize("tie_weights", [True, False])
def test_configuration_comes_back(tmp_path, tie_weights):
    model, (x, _, _) = make_pretrainer(span_boundary_weight=0.5, tie_weights=tie_weights), make_batch()
    model.save(tmp_path / "m.keras")
    twin = keras.models.load_model(tmp_path / "m.keras")
    assert (twin.span_boundary_weight, twin.tie_weights) == (0.5, tie_weights)
    for name, value in model.predict(x, verbose=0).items():
        np.testing.assert_array_equal(value, twin.predict(x, verbose=0)[name])


@pytest.mark.slow_compiled
def test_published_model_is_a_masked_lm_of_transformers(tmp_path):
    model, (x, _, _) = make_pretrainer(), make_batch()
    model.find_published().save_to_preset(tmp_path / "ours")
    reference = load_reference("BertForMaskedLM", tmp_path / "ours")
    logits = run_reference(reference, x).logits.numpy()
    expected = np.take_along_axis(logits, x["mask_positions"][..., None], axis=1)
    found = model.predict(x, verbose=0)["mlm"]
    np.testing.assert_allclose(found, expected, atol=TOLERANCE)
    again = kbf.SpanBoundaryPretrainer.from_preset(tmp_path / "ours")
    known = {weight.path for weight in model.find_published().weights}
    for weight, ours, theirs in zip(model.weights, model.get_weights(), again.get_weights(), strict=True):
        assert weight.path not in known or np.array_equal(ours, theirs)


@pytest.mark.any_backend
def test_transform_keeps_contract():
    shape = kbf.BertBackbone(**SMALL).shape
    sequence = np.random.default_rng(0).normal(size=(2, 9, SMALL["hidden_dim"])).astype("float32")
    places = np.array([[0, 2, 4], [1, 1, 0]], "int32")
    layer = SpanBoundaryTransform(shape, max_targets=5, position_dim=7, name="sbo_transform")
    run_layer_test(layer, sequence, places, places + 2, places)


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="the counter is PyTorch's")
@pytest.mark.parametrize("backward", [False, True])
def test_operations_are_those_that_torch_counts(backward):
    from torch.utils.flop_counter import FlopCounterMode

    model, (x, _, _) = make_pretrainer(), make_batch()
    x["padding_mask"] = np.ones_like(x["padding_mask"])  # padding would be left out
    with FlopCounterMode(display=False) as counter:
        outputs = model({name: keras.ops.convert_to_tensor(value) for name, value in x.items()}, training=True)
        if backward:
            sum(output.sum() for output in outputs.values()).backward()
    length, masks = x["token_ids"].shape[1], x["mask_positions"].shape[1]
    flops = count_flops(model.backbone.shape, length, masks, use_pooler=False, span_boundary=True)
    assert len(x["token_ids"]) * (flops.training if backward else flops.forward) == counter.get_total_flops()

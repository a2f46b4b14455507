"""Replaced-token detection: what each part learns from, and the detector beside that of `transformers`."""

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.models.sizes import count_flops
from tests.oracles import numpy_bert
from tests.oracles.small_bert import SMALL, make_inputs

MASKS = 3


def make_pretrainer(seed=1, **options):
    backbone = kbf.Backbone("electra", **SMALL | {"dropout_rate": 0.0, "attention_dropout_rate": 0.0})
    model = kbf.ReplacedTokenPretrainer(backbone, **{"generator_size": 0.5} | options)
    numpy_bert.randomise_weights(model, seed)
    return model


def make_batch(seed=3):
    x = make_inputs(masks_per_sequence=MASKS)
    rng = np.random.default_rng(seed)
    shape = x["mask_positions"].shape
    x["mask_positions"] = np.stack([rng.permutation(x["token_ids"].shape[1])[:MASKS] for _ in range(shape[0])])
    x |= {"mask_ids": rng.integers(0, 50, shape, "int32"), "replacement_draws": rng.random(shape, np.float32)}
    y = {"mlm": x["mask_ids"], "rtd": np.ones_like(x["token_ids"])}
    weights = {"mlm": np.ones(shape, "float32"), "rtd": x["padding_mask"].astype("float32")}
    return x, y, weights


def move(model, losses):
    """Return the paths of the weights that a step moves."""
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss=model.make_losses_and_metrics()[0], loss_weights=losses)
    before = model.get_weights()
    x, y, weights = make_batch()
    model.train_on_batch(x, y, sample_weight=weights)
    after = model.get_weights()
    return {
        weight.path
        for weight, old, new in zip(model.weights, before, after, strict=True)
        if np.abs(new - old).max() > 0
    }


@pytest.mark.any_backend
def test_each_part_learns_from_its_own_loss():
    shared = {"token_embedding", "embeddings"}
    heads = {"mlm_transform", "mlm"}

    def parts(paths):
        return {path.partition("/")[0] for path in paths}

    both, generator, detector = (
        parts(move(make_pretrainer(), dict(zip(("mlm", "rtd"), weights, strict=True))))
        for weights in ((1.0, 50.0), (1.0, 0.0), (0.0, 1.0))
    )
    model = make_pretrainer()
    assert both == parts(weight.path for weight in model.weights)
    assert generator == shared | heads | {part for part in both if part.startswith("generator_")}
    assert detector == shared | {part for part in both if part.startswith(("encoder_block_", "replaced", "widening"))}
    assert len({weight.path for weight in model.weights}) == len(model.weights)  # optimizers go by paths


@pytest.mark.any_backend
def test_detector_sees_what_the_generator_put_in():
    model, (x, _, _) = make_pretrainer(), make_batch()
    outputs = model.predict(x, verbose=0)
    shares = np.exp(outputs["mlm"].astype("float64"))
    ends = np.cumsum(shares / shares.sum(-1, keepdims=True), axis=-1)
    drawn = (ends <= x["replacement_draws"][..., None]).sum(-1)
    replaced, original = x["token_ids"].copy(), x["token_ids"].copy()
    for row, place in np.argwhere(x["mask_positions"] > 0):
        replaced[row, x["mask_positions"][row, place]] = drawn[row, place]
        original[row, x["mask_positions"][row, place]] = x["mask_ids"][row, place]
    inputs = {"token_ids": replaced, "segment_ids": x["segment_ids"], "padding_mask": x["padding_mask"]}
    logits = model.find_published().predict(inputs, verbose=0)
    right = np.where(replaced != original, logits, -logits)
    assert (replaced != original).any()
    np.testing.assert_allclose(outputs["rtd"][..., 1] - outputs["rtd"][..., 0], right, atol=1e-5)


@pytest.mark.any_backend
def test_configuration_comes_back():
    model, (x, _, _) = make_pretrainer(replaced_token_weight=20.0), make_batch()
    twin = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(model))
    twin.set_weights(model.get_weights())
    assert (twin.generator_size, twin.replaced_token_weight) == (0.5, 20.0)
    for name, value in model.predict(x, verbose=0).items():
        np.testing.assert_array_equal(value, twin.predict(x, verbose=0)[name])


@pytest.mark.slow_compiled
def test_detector_travels_to_transformers_and_back(tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    detector, inputs = make_pretrainer().find_published(), make_inputs()
    detector.save_to_preset(tmp_path / "ours")
    reference, report = transformers.ElectraForPreTraining.from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert {name: list(found) for name, found in report.items() if found} == {}
    with torch.no_grad():
        expected = reference.eval()(
            input_ids=torch.tensor(inputs["token_ids"]).long(),
            attention_mask=torch.tensor(inputs["padding_mask"]).long(),
            token_type_ids=torch.tensor(inputs["segment_ids"]).long(),
        ).logits.numpy()
    mask = inputs["padding_mask"].astype(bool)
    # float32 rounding (6e-8) of values up to 10 through sums of up to 40 terms
    np.testing.assert_allclose(detector.predict(inputs, verbose=0)[mask], expected[mask], atol=1e-5)
    reference.save_pretrained(tmp_path / "theirs")
    again = kbf.ReplacedTokenDetector.from_preset(tmp_path / "theirs")
    for one, other in zip(detector.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.any_backend
def test_detector_has_the_binary_cross_entropy_by_default():
    detector, inputs = make_pretrainer().find_published(), make_inputs()
    detector.compile()
    labels = np.random.default_rng(5).integers(0, 2, inputs["token_ids"].shape)
    weights = inputs["padding_mask"].astype("float32")
    logits = detector.predict(inputs, verbose=0).astype("float64")
    losses = np.log1p(np.exp(logits)) - logits * labels
    logs = detector.evaluate(inputs, labels, sample_weight=weights, verbose=0, return_dict=True)
    assert logs["loss"] == pytest.approx((losses * weights).sum() / weights.sum(), rel=1e-5)  # float32 sums
    hits = ((logits > 0) == labels) * weights
    assert logs["accuracy"] == pytest.approx(hits.sum() / weights.sum(), abs=1e-6)


@pytest.mark.any_backend
def test_other_families_and_sizes_are_refused():
    with pytest.raises(ValueError, match="a family that has a model for it: electra. Received: family='bert'"):
        kbf.ReplacedTokenDetector(kbf.BertBackbone(**SMALL, use_pooler=False))
    with pytest.raises(ValueError, match="above 0 and at most 1. Received: 1.5"):
        make_pretrainer(generator_size=1.5)


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
    shape, length = model.backbone.shape, x["token_ids"].shape[1]
    flops = count_flops(shape, length, MASKS, use_pooler=False, generator=shape.narrow(0.5))
    assert len(x["token_ids"]) * (flops.training if backward else flops.forward) == counter.get_total_flops()

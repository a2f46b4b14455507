"""What every model of a task owes: shapes, float32, nothing of padding, its configuration, training."""

import inspect

import grain
import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from tests.oracles.small_bert import SMALL
from tests.oracles.task_models import CASES, call, make_task_inputs, make_task_labels, make_task_model

EVERY_KIND = pytest.mark.parametrize("kind", CASES)
POOLED_KINDS = ("classification", "regression", "multi_label")
TRAINED_KINDS = [kind for kind in CASES if kind != "embedding"]  # which is trained as pairs
# What is added alike to each choice, or to each token, changes no softmax: these have no gradient but rounding.
UNMOVED = {
    "multiple_choice": {"classifier/bias"},
    "question_answering": {"span/bias", "encoder_block_0/output_layer_norm/beta"},
}


def select_real(kind, outputs, mask):
    """Leave out what an empty text says: it has no token to say it by."""
    if kind == "token_classification":
        return {name: value[:, : mask.shape[1]][mask.astype(bool)] for name, value in outputs.items()}
    if kind in POOLED_KINDS:
        return {name: value[mask.any(axis=-1)] for name, value in outputs.items()}
    if kind == "question_answering":
        return {name: value[:, : mask.shape[1]] for name, value in outputs.items()}
    return outputs


@pytest.mark.any_backend
@EVERY_KIND
def test_task_model_gives_float32_of_its_shape(kind):
    model = make_task_model(kind, dtype="mixed_bfloat16")
    outputs = model(make_task_inputs(kind))
    expected = CASES[kind].output_shape
    for name, shape in expected.items() if isinstance(expected, dict) else [(None, expected)]:
        output = outputs if name is None else outputs[name]
        assert tuple(output.shape) == shape
        assert keras.backend.standardize_dtype(output.dtype) == "float32"
        assert np.isfinite(keras.ops.convert_to_numpy(output)).all()
    assert {variable.dtype for variable in model.weights} == {"float32"}


@pytest.mark.slow_compiled
@EVERY_KIND
def test_task_model_ignores_content_of_padding(kind):
    model = make_task_model(kind)
    inputs, other = make_task_inputs(kind), make_task_inputs(kind, seed=9)
    mask = inputs["padding_mask"]
    changed = {name: np.where(mask.astype(bool), inputs[name], other[name]).astype("int32") for name in inputs}
    assert (changed["token_ids"] != inputs["token_ids"]).any()
    before, after = (select_real(kind, call(model, x), mask) for x in (inputs, changed))
    for name in before:
        np.testing.assert_array_equal(before[name], after[name])


@pytest.mark.any_backend
@EVERY_KIND
def test_task_model_does_not_depend_on_padded_length(kind):
    model = make_task_model(kind)
    inputs = make_task_inputs(kind)
    mask = inputs["padding_mask"]
    longer = {
        name: np.concatenate([value, np.full((*value.shape[:-1], 4), filler, "int32")], axis=-1)
        for (name, value), filler in zip(inputs.items(), (11, 1, 0), strict=True)
    }
    before, after = (select_real(kind, call(model, x), mask) for x in (inputs, longer))
    for name in before:
        # Products of other shapes sum in another order: float32 roundings of values up to 10.
        np.testing.assert_allclose(after[name], before[name], atol=2e-5)


def test_spans_do_not_end_in_padding():
    inputs = make_task_inputs("question_answering")
    outputs = call(make_task_model("question_answering"), inputs)
    for scores in outputs.values():
        assert (scores[inputs["padding_mask"] == 0] < -1e8).all()
        assert (scores[inputs["padding_mask"] == 1] > -1e2).all()


@pytest.mark.slow_compiled
def test_missing_choices_are_not_chosen():
    inputs = make_task_inputs("multiple_choice")
    scores = call(make_task_model("multiple_choice"), inputs)["output"]
    is_filler = ~inputs["padding_mask"].any(axis=-1)
    assert is_filler.any() and not is_filler.all(axis=-1).any()
    np.testing.assert_array_equal(scores < -1e8, is_filler)


@pytest.mark.any_backend
@EVERY_KIND
def test_task_model_config_round_trip(kind):
    model = make_task_model(kind, hidden_act="gelu_tanh")
    assert set(model.get_config()) == set(inspect.signature(type(model)).parameters)
    twin = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(model))
    assert type(twin) is type(model)
    assert twin.get_config() == model.get_config()
    twin.set_weights(model.get_weights())
    inputs = make_task_inputs(kind)
    for name, value in call(model, inputs).items():
        np.testing.assert_array_equal(call(twin, inputs)[name], value)


@pytest.mark.any_backend
@EVERY_KIND
def test_task_model_refuses_a_backbone_that_does_not_fit(kind):
    use_pooler = CASES[kind].use_pooler
    message = "with a pooler. Received: use_pooler=False" if use_pooler else "without a pooler.*use_pooler=True"
    backbone = kbf.BertBackbone(**SMALL, use_pooler=not use_pooler)
    has_pooling = kind in (*POOLED_KINDS, "multiple_choice")
    options = {"pooling": "cls"} if has_pooling else {}  # their default follows the backbone
    with pytest.raises(ValueError, match=message):
        CASES[kind].make(backbone, **options)


@pytest.mark.first_form_compiled
@pytest.mark.parametrize("kind", TRAINED_KINDS)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("mixed_bfloat16", marks=pytest.mark.any_backend)])
@pytest.mark.slow_on_tensorflow
def test_step_with_defaults_lowers_the_loss_and_moves_every_weight(kind, dtype):
    model = make_task_model(kind, dtype=dtype, dropout_rate=0.0, attention_dropout_rate=0.0)
    for layer in model.layers:
        if layer.name == "classifier_dropout":
            layer.rate = 0.0
    model.compile(optimizer=keras.optimizers.SGD(0.01))
    before = model.get_weights()
    losses = [
        float(model.train_on_batch(make_task_inputs(kind), make_task_labels(kind), return_dict=True)["loss"])
        for _ in range(2)
    ]
    assert losses[1] < losses[0]
    changed = [np.abs(old - new).max() for old, new in zip(before, model.get_weights(), strict=True)]
    assert np.isfinite(changed).all()
    still = [v.path for v, change in zip(model.weights, changed, strict=True) if not change]
    assert set(still) <= UNMOVED.get(kind, set())


@pytest.mark.parametrize("kind", ["question_answering", pytest.param("multiple_choice", marks=pytest.mark.any_backend)])
@pytest.mark.slow_compiled
def test_task_model_trains_on_batches_of_several_lengths(kind):
    """Keras looks at the first two batches, which are of one length here."""
    model = make_task_model(kind)
    model.compile(optimizer=keras.optimizers.SGD(0.01))

    def pad(number):
        inputs, missing = make_task_inputs(kind), (0, 0, 3)[number % 3]
        inputs = {name: np.pad(ids, [(0, 0)] * (ids.ndim - 1) + [(0, missing)]) for name, ids in inputs.items()}
        return inputs, make_task_labels(kind)

    batches = grain.MapDataset.range(6).map(pad).to_iter_dataset()
    history = model.fit(batches, steps_per_epoch=3, epochs=2, validation_data=batches, validation_steps=3, verbose=0)
    assert np.isfinite(history.history["loss"] + history.history["val_loss"]).all()
    assert np.isfinite(model.evaluate(batches, steps=3, verbose=0)).all()


@pytest.mark.slow_compiled
def test_embedder_shares_the_weights_of_its_pairs():
    pairs = make_task_model("cosine_pairs")
    inputs = make_task_inputs("cosine_pairs")
    embedder = pairs.make_embedder()
    assert (embedder.pooling, embedder.normalize) == ("max", True)
    halves = [{name: value[:, place] for name, value in inputs.items()} for place in range(2)]
    first, second = (call(embedder, half)["output"] for half in halves)
    # Products of other shapes sum in another order.
    np.testing.assert_allclose(call(pairs, inputs)["output"], np.stack([first, second], axis=1), atol=1e-5)
    alone = {name: value[:, :1] for name, value in inputs.items()}
    np.testing.assert_allclose(call(pairs, alone)["output"], first[:, None], atol=1e-5)
    pairs.backbone.token_embedding.embeddings.assign(np.zeros((50, 24), "float32"))
    assert np.abs(call(embedder, halves[0])["output"] - first).max() > 0.01


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"objective": "triplet"}, "one of contrastive, cosine. Received: objective='triplet'"),
        ({"scale": 0}, "above 0. Received: scale=0"),
        ({"pooling": "last"}, "Received: pooling='last'"),
    ],
)
def test_pairs_refuse_unknown_settings(arguments, message):
    with pytest.raises(ValueError, match=message):
        kbf.PairEmbedder(kbf.BertBackbone(**SMALL, use_pooler=False), **arguments)


@pytest.mark.any_backend
@pytest.mark.parametrize("kind", ["multi_label", "token_classification"])
def test_classes_must_have_their_names(kind):
    make, use_pooler = CASES[kind].make.func, CASES[kind].use_pooler
    backbone = kbf.BertBackbone(**SMALL, use_pooler=use_pooler)
    with pytest.raises(ValueError, match="2 labels, num_classes=3"):
        make(backbone, num_classes=3, labels=["a", "b"])
    with pytest.raises(ValueError, match="Received: num_classes=0"):
        make(backbone, num_classes=0)

"""LoRA on each family: what is trained, what is saved, and what is refused."""

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.models.families.family import FAMILIES
from keras_bert_flow.models.trained_weights import TARGETS
from tests.oracles import numpy_bert
from tests.oracles.small_bert import SMALL, make_inputs

LABELS = np.array([0, 1, 2, 0])
STILL = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}


def make_classifier(family="bert", **settings):
    model = kbf.TextClassifier(kbf.Backbone(family, **SMALL | STILL | settings, use_pooler=True), 3, dropout_rate=0.0)
    numpy_bert.randomise_weights(model, seed=1)
    return model


def train(model, steps=2):
    model.compile(optimizer=keras.optimizers.SGD(1.0))
    for _ in range(steps):
        model.train_on_batch(make_inputs(), LABELS)


def read_weights(model):
    return {variable.path: keras.ops.convert_to_numpy(variable) for variable in model.weights}


def ask(model):
    return keras.ops.convert_to_numpy(model(make_inputs(), training=False))


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.any_backend
@pytest.mark.first_form
def test_only_lora_pooler_and_head_are_trained_and_saved_merged(family, tmp_path):
    model = make_classifier(family)
    before, first = read_weights(model), ask(model)
    model.backbone.enable_lora(2, 4, TARGETS)
    np.testing.assert_array_equal(ask(model), first)  # the second matrices begin at 0
    train(model)
    after = read_weights(model)
    changed = {path for path, value in after.items() if path not in before or not np.array_equal(value, before[path])}
    blocks = {path for path in after if "/lora_" in path}
    assert changed == blocks | {path for path in after if path.startswith(("classifier/", "pooler/", "head/"))}
    products = 4 + 2 * model.backbone.shape.num_feed_forwards  # query, key, value, that of the heads, and two each
    assert len(blocks) == len(model.backbone.blocks) * 2 * products
    model.save_to_preset(tmp_path / "model")
    # Float32 rounding of a sum with the kernel, in place of a sum with its product.
    np.testing.assert_allclose(ask(kbf.TextClassifier.from_preset(tmp_path / "model")), ask(model), atol=1e-5)
    model.save(tmp_path / "model.keras")
    np.testing.assert_allclose(ask(keras.saving.load_model(tmp_path / "model.keras")), ask(model), atol=1e-5)


@pytest.mark.any_backend
@pytest.mark.parametrize("sharing", ["attention", "feed_forward"])
def test_what_blocks_share_gets_lora_once(sharing):
    model = make_classifier("albert", num_groups=2, sharing=sharing)
    model.backbone.enable_lora(2, targets=TARGETS)
    train(model)
    count = sum("/lora_" in path for path in read_weights(model))
    assert count == {"attention": 8 + 2 * 4, "feed_forward": 2 * 8 + 4}[sharing]


def test_merging_keeps_the_precision_of_frozen_weights(tmp_path):
    model = make_classifier(dtype="mixed_bfloat16")
    before = read_weights(model)
    model.backbone.enable_lora(2, targets=("feed_forward",))
    model.save_to_preset(tmp_path / "model")
    after = read_weights(kbf.TextClassifier.from_preset(tmp_path / "model"))
    for path, value in before.items():
        np.testing.assert_array_equal(after[path], value)


@pytest.mark.slow_compiled
def test_what_keras_enables_is_saved_too(tmp_path):
    model = make_classifier()
    adapted = [model.backbone.token_embedding, model.backbone.blocks[1].intermediate, model.get_layer("classifier")]
    adapted.append(model.backbone.blocks[0].attention.query_key_value)
    for layer in adapted:
        layer.enable_lora(2, lora_alpha=6)
    for variable in model.trainable_variables:
        if "/lora_" in variable.path:
            variable.assign(variable + 0.1)
    model.save_to_preset(tmp_path / "model")
    np.testing.assert_allclose(ask(kbf.TextClassifier.from_preset(tmp_path / "model")), ask(model), atol=1e-4)  # of 10


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rank": 0}, "rank of 1 or more"),
        ({"rank": 2.5}, "rank of 1 or more"),
        ({"rank": 2, "alpha": 0.0}, "alpha above 0"),
        ({"rank": 2, "targets": ("query", "dense")}, r"among query, .*, feed_forward. Received: \['query', 'dense'\]"),
        ({"rank": 2, "targets": ()}, r"Received: \[\]"),
    ],
)
def test_unusable_settings_are_refused(arguments, message):
    backbone = make_classifier().backbone
    with pytest.raises(ValueError, match=message):
        backbone.enable_lora(**arguments)
    assert all(weight.trainable for weight in backbone.weights)


@pytest.mark.any_backend
def test_lora_is_enabled_once():
    backbone = make_classifier().backbone
    backbone.enable_lora(2)
    with pytest.raises(ValueError, match="LoRA must be enabled once"):
        backbone.enable_lora(2, targets=("key",))


def enable_everywhere(model):
    """Enable LoRA of ours in the encoder, and that of Keras in the head and the token embedding."""
    model.backbone.enable_lora(2, 4, TARGETS)
    model.get_layer("classifier").enable_lora(2, lora_alpha=6)
    model.backbone.token_embedding.enable_lora(1)


@pytest.mark.slow_compiled
def test_keras_file_goes_on_exactly_with_lora(tmp_path):
    model = make_classifier()
    enable_everywhere(model)
    model.compile(optimizer=keras.optimizers.Adam(0.01))
    for _ in range(2):
        model.train_on_batch(make_inputs(), LABELS)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert [weight.path for weight in again.trainable_weights] == [weight.path for weight in model.trainable_weights]
    assert int(again.optimizer.iterations) == 2
    for _ in range(2):
        for each in (model, again):
            each.train_on_batch(make_inputs(), LABELS)
    for (path, one), other in zip(read_weights(model).items(), read_weights(again).values(), strict=True):
        np.testing.assert_array_equal(one, other, err_msg=path)


@pytest.mark.any_backend
def test_weights_with_lora_load_with_and_without_it(tmp_path):
    model = make_classifier()
    enable_everywhere(model)
    train(model)
    model.save_weights(tmp_path / "lora.weights.h5")
    plain, adapted = make_classifier(), make_classifier()
    plain.load_weights(tmp_path / "lora.weights.h5")
    np.testing.assert_allclose(ask(plain), ask(model), atol=1e-4)  # merged; of 10
    enable_everywhere(adapted)
    adapted.load_weights(tmp_path / "lora.weights.h5")
    np.testing.assert_array_equal(ask(adapted), ask(model))
    plain.save_weights(tmp_path / "plain.weights.h5")
    with pytest.raises(ValueError, match="must have the LoRA of the layer"):
        adapted.load_weights(tmp_path / "plain.weights.h5")
    other = make_classifier()
    other.backbone.enable_lora(3, 4, TARGETS)
    with pytest.raises(ValueError, match="of other targets or another rank"):
        other.load_weights(tmp_path / "lora.weights.h5")


@pytest.mark.any_backend
def test_quantised_model_with_lora_is_loaded_as_it_was(tmp_path):
    model = make_classifier()
    enable_everywhere(model)
    train(model)
    model.quantize("int8")
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras", compile=False)
    np.testing.assert_array_equal(ask(again), ask(model))

"""The mean of the hidden states that predicts the masked tokens, against NumPy and PyTorch."""

import keras
import numpy as np
import pytest
import torch

from keras_bert_flow.data.pretraining import add_bag_of_words, pretraining_dataset
from keras_bert_flow.models.backbone import BertBackbone
from keras_bert_flow.models.defaults import token_loss
from keras_bert_flow.models.pretraining.bag_of_words import BagOfWordsPretrainer
from keras_bert_flow.models.pretraining.masked_lm import BertPretrainer, MaskedLM
from tests.oracles import numpy_bert
from tests.oracles.small_bert import SMALL, make_inputs
from tests.oracles.tiny_records import write_tiny_records

STILL = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}
WEIGHTS = np.array([[1, 1, 1], [1, 1, 0], [1, 0, 0], [0, 0, 0]], "float32")
EVERY = np.ones(50, "float32")  # every token counts as much
LABELS = np.array([[7, 9, 7], [3, 49, 0], [5, 0, 0], [0, 0, 0]])  # a word twice, as texts have them


def make_pretrainer(weight=0.5, **settings):
    model = MaskedLM(BertBackbone(**SMALL, use_pooler=False, **settings))
    numpy_bert.randomise_weights(model, seed=6)
    return BagOfWordsPretrainer(model, weight)


def entropies_of(logits, labels):
    """Return the cross-entropy of each label with the logits of its row, by PyTorch, (batch, labels)."""
    logits = torch.tensor(np.array(logits)).double()[:, 0]
    rows = [torch.nn.functional.cross_entropy(logits, torch.tensor(column), reduction="none") for column in labels.T]
    return torch.stack(rows, 1).numpy()


@pytest.mark.any_backend
def test_words_are_read_from_the_mean_of_the_real_tokens():
    model, inputs = make_pretrainer(), make_inputs(masks_per_sequence=3)
    found = model.predict(inputs, verbose=0)
    assert set(found) == {"mlm", "words"}
    np.testing.assert_array_equal(found["mlm"], model.pretrainer.predict(inputs, verbose=0)["mlm"])
    hidden = model.backbone.predict({name: inputs[name] for name in model.backbone.input}, verbose=0)["sequence_output"]
    is_real = inputs["padding_mask"][..., None].astype(bool)
    is_text = is_real.any(axis=(1, 2))  # filler has no mean
    mean = torch.tensor(np.mean(hidden[is_text], axis=1, where=is_real[is_text]))
    dense, norm, bias = (model.get_layer(name) for name in ("words_dense", "words_norm", "words"))
    arrays = [torch.tensor(np.array(value)) for value in (*dense.get_weights(), *norm.get_weights())]
    kernel, dense_bias, gamma, beta = arrays
    hidden = torch.nn.functional.gelu(mean @ kernel + dense_bias)
    hidden = torch.nn.functional.layer_norm(hidden, hidden.shape[-1:], gamma, beta, 1e-12)
    table = torch.tensor(np.array(model.backbone.token_embedding.get_weights()[0]))
    expected = hidden @ table.T + torch.tensor(bias.get_weights()[0])
    assert found["words"].shape == (len(is_text), 1, len(table))
    np.testing.assert_allclose(found["words"][is_text, 0], expected.numpy(), atol=2e-5)  # float32 logits of up to 5


@pytest.mark.any_backend
def test_several_labels_of_a_row_have_a_loss_each():
    logits = np.random.default_rng(1).normal(size=(4, 1, 50)).astype("float32") * 5
    found = token_loss()(LABELS, logits, WEIGHTS)
    expected = (entropies_of(logits, LABELS) * WEIGHTS).sum() / WEIGHTS.sum()
    assert float(found) == pytest.approx(expected, abs=1e-5)
    total = token_loss(is_sum=True)(LABELS, logits, WEIGHTS)
    assert float(total) == pytest.approx(expected * WEIGHTS.sum(), abs=1e-4)


@pytest.mark.any_backend
def test_one_hot_labels_are_no_several_labels():
    labels, logits = np.array([0, 1, 2, 0]), np.random.default_rng(2).normal(size=(4, 3)).astype("float32")
    found = token_loss()(np.eye(3, dtype="int32")[labels], logits)
    assert float(found) == pytest.approx(float(token_loss()(labels, logits)), rel=1e-6)  # the same sums


@pytest.mark.any_backend
@pytest.mark.slow
def test_mean_learns_which_words_a_text_has():
    """Texts have words of one of two halves of the vocabulary; without the mean no loss is below that of 40 words."""
    keras.utils.set_random_seed(1)
    model = BagOfWordsPretrainer(MaskedLM(BertBackbone(**SMALL | STILL, use_pooler=False)))
    model.compile(optimizer=keras.optimizers.Adam(0.01))
    rng = np.random.default_rng(3)
    for _ in range(60):
        words = 5 + rng.integers(0, 20, (32, 12)) + 20 * rng.integers(0, 2, (32, 1))
        x = {"token_ids": words.copy(), "segment_ids": 0 * words, "padding_mask": 0 * words + 1}
        x["token_ids"][:, :3] = 4  # [MASK]
        x["mask_positions"] = np.tile(np.arange(3), (32, 1))
        x = {name: values.astype("int32") for name, values in x.items()}
        batch = (x, {"mlm": words[:, :3]}, {"mlm": np.ones((32, 3), "float32")})
        logs = model.train_on_batch(*add_bag_of_words(batch, EVERY), return_dict=True)
        model.reset_metrics()
    assert logs["words_loss"] < np.log(40) - 0.4  # that of 20 words is log 40 - 0.69


@pytest.mark.any_backend
def test_whole_loss_adds_the_weighted_loss_of_words():
    model, inputs = make_pretrainer(weight=0.5), make_inputs(masks_per_sequence=3)
    model.compile()
    label_weights = np.linspace(0.1, 1.0, 50).astype("float32")
    _, y, weights = add_bag_of_words((inputs, {"mlm": LABELS}, {"mlm": WEIGHTS}), label_weights)
    logs = model.evaluate(inputs, y, sample_weight=weights, verbose=0, return_dict=True)
    counted = WEIGHTS * label_weights[LABELS]
    words = (entropies_of(model.predict(inputs, verbose=0)["words"], LABELS) * counted).sum() / counted.sum()
    assert logs["words_loss"] == pytest.approx(words, abs=1e-4)
    assert logs["loss"] == pytest.approx(logs["mlm_loss"] + 0.5 * words, abs=1e-4)


@pytest.mark.any_backend
def test_every_weight_is_trained_and_the_pretrainer_has_them():
    model, inputs = make_pretrainer(dropout_rate=0.0, attention_dropout_rate=0.0), make_inputs(masks_per_sequence=3)
    model.compile(optimizer=keras.optimizers.SGD(0.1))
    before = model.get_weights()
    model.train_on_batch(*add_bag_of_words((inputs, {"mlm": LABELS}, {"mlm": WEIGHTS}), EVERY))
    changed = [np.abs(old - new).max() for old, new in zip(before, model.get_weights(), strict=True)]
    assert [v.path for v, change in zip(model.weights, changed, strict=True) if not change] == []
    assert len({variable.path for variable in model.weights}) == len(model.weights)
    assert {v.path for v in model.pretrainer.weights} < {v.path for v in model.weights}


@pytest.mark.slow_compiled
@pytest.mark.slow_on_tensorflow
def test_model_is_saved_and_loaded_with_its_pretrainer(tmp_path):
    model, inputs = make_pretrainer(weight=2.0), make_inputs(masks_per_sequence=3)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.weight == 2.0 and type(loaded.pretrainer) is MaskedLM
    for name, values in model.predict(inputs, verbose=0).items():
        np.testing.assert_array_equal(loaded.predict(inputs, verbose=0)[name], values)


@pytest.mark.any_backend
def test_fits_batches_of_records_with_sentence_pairs(tmp_path):
    records = write_tiny_records(tmp_path / "records")
    model = BagOfWordsPretrainer(BertPretrainer(BertBackbone(**SMALL)))
    model.compile()
    history = model.fit(pretraining_dataset(records, 5, bag_of_words=True), steps_per_epoch=3, verbose=0).history
    assert {"loss", "mlm_loss", "nsp_loss", "words_loss"} <= history.keys()

"""Models that were loaded with their tokenizer take texts, and names of classes, where Keras takes arrays."""

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from tests.oracles.numpy_bert import randomise_weights
from tests.oracles.small_bert import SMALL
from tests.oracles.tiny_model import POSITIONS, write_tiny_model

TEXTS = ["a b", "c", "b b c", ""] * 2
NAMES = ["no", "yes"] * 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("preset") / "model")


@pytest.fixture
def model(folder):
    keras.utils.set_random_seed(1)  # of dropout, and of the order of the rows
    model = kbf.TextClassifier.from_preset(folder, labels=["no", "yes"])
    model.compile(optimizer=keras.optimizers.Adam(2e-2))
    randomise_weights(model, 7)
    return model


@pytest.mark.slow_compiled
def test_texts_give_what_their_inputs_give(model, folder):
    transformers = pytest.importorskip("transformers", reason="the reference needs transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    found = tokenizer(TEXTS, padding="max_length", max_length=8, return_tensors="np")
    names = {"token_ids": "input_ids", "segment_ids": "token_type_ids", "padding_mask": "attention_mask"}
    inputs = {ours: found[theirs].astype("int32") for ours, theirs in names.items()}
    wanted = model.predict(inputs, verbose=0)
    for texts in (TEXTS, tuple(TEXTS), np.array(TEXTS), np.array(TEXTS, object)):
        np.testing.assert_allclose(model.predict(texts, verbose=0), wanted, atol=1e-6)  # another width
    np.testing.assert_allclose(model.predict_on_batch(TEXTS), wanted, atol=1e-6)
    np.testing.assert_allclose(model.predict("a b", verbose=0), wanted[:1], atol=1e-6)


@pytest.mark.any_backend
def test_columns_of_pandas_are_texts(model):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"text": TEXTS, "label": NAMES})
    wanted = model.evaluate(TEXTS, np.array([0, 1] * 4), verbose=0)
    assert model.evaluate(table.text, table.label, verbose=0) == wanted
    assert model.evaluate(table.text.astype("string"), table.label.astype("string"), verbose=0) == wanted


@pytest.mark.any_backend
def test_pairs_have_two_segments(model):
    pairs = [["a", "b c"], ["c", ""]]
    wanted = model.predict(pairs, verbose=0)
    inputs = model.preprocessor(pairs)
    assert inputs["segment_ids"][0].tolist()[:7] == [0, 0, 0, 1, 1, 1, 0]
    for form in ([tuple(pair) for pair in pairs], [{"text": a, "text_pair": b} for a, b in pairs], np.array(pairs)):
        np.testing.assert_array_equal(model.predict(form, verbose=0), wanted)


@pytest.mark.slow
@pytest.mark.slow_compiled
def test_a_model_learns_from_texts_and_names(model):
    texts = ["a a b", "c c b"] * 8
    before = model.evaluate(texts, NAMES * 2, verbose=0)[0]
    history = model.fit(
        texts, NAMES * 2, validation_data=(texts, NAMES * 2), batch_size=4, epochs=20, verbose=0
    ).history
    after = model.evaluate(texts, NAMES * 2, verbose=0)
    assert after[0] < before / 2 and after[1] == 1.0
    assert after[0] == pytest.approx(history["val_loss"][-1], rel=1e-5)
    model.train_on_batch(texts, NAMES * 2)
    assert model.test_on_batch(texts, NAMES * 2)[1] == 1.0


@pytest.mark.any_backend
def test_the_tokenizer_goes_where_its_backbone_goes(folder, tmp_path):
    backbone = kbf.Backbone.from_preset(folder)
    model = kbf.TextClassifier(backbone, labels=["no", "yes"])
    assert model.predict(TEXTS, verbose=0).shape == (8, 2)
    model.save_to_preset(tmp_path / "saved")
    again = kbf.TextClassifier.from_preset(tmp_path / "saved")
    np.testing.assert_allclose(again.predict(TEXTS, verbose=0), model.predict(TEXTS, verbose=0), atol=1e-6)
    assert (tmp_path / "saved" / "vocab.txt").read_bytes() == (folder / "vocab.txt").read_bytes()


@pytest.mark.any_backend
def test_long_texts_are_cut_to_the_rows_of_the_model(model):
    assert model.preprocessor.sequence_length == POSITIONS
    assert model.preprocessor(["a " * 1000])["token_ids"].shape == (1, POSITIONS)
    assert model.predict(["a " * 1000], verbose=0).shape == (1, 2)


@pytest.mark.any_backend
def test_what_cannot_be_encoded_is_refused_in_one_line(model, folder):
    bare = kbf.TextClassifier(kbf.BertBackbone(**SMALL), labels=["no", "yes"])
    bare.compile()
    with pytest.raises(ValueError, match="needs a tokenizer to take texts.*TextPreprocessor"):
        bare.predict(TEXTS)
    bare.preprocessor = kbf.TextPreprocessor(kbf.Tokenizer.from_preset(folder), 16)
    assert bare.predict(TEXTS, verbose=0).shape == (8, 2)
    with pytest.raises(ValueError, match=r"one of the model's. Received: 'maybe' in row 1. Use one of no, yes"):
        model.fit(TEXTS[:2], ["no", "maybe"])
    unnamed = kbf.TextClassifier(kbf.Backbone.from_preset(folder), 2)
    unnamed.compile()
    with pytest.raises(ValueError, match="Build the model with `labels`"):
        unnamed.fit(TEXTS[:2], ["no", "maybe"])
    with pytest.raises(ValueError, match="must have the texts text, text_pair"):
        model.predict([["a", "b"], ["a", "b", "c"]])
    with pytest.raises(ValueError, match="more than texts"):
        kbf.MaskedLM(kbf.BertBackbone(**SMALL, use_pooler=False)).predict(TEXTS)
    with pytest.raises(ValueError, match="leave room"):
        kbf.TextPreprocessor(kbf.Tokenizer.from_preset(folder), 4)


@pytest.mark.any_backend
def test_tokenizer_is_public_and_callable(folder):
    tokenizer = kbf.Tokenizer.from_preset(folder)
    assert tokenizer("a b").tolist() == [5, 6]
    assert [ids.tolist() for ids in tokenizer(["a b", "c"])] == [[5, 6], [7]]
    assert tokenizer.decode(tokenizer("c b a")) == "c b a"

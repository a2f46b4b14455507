"""Models whose token embeddings have more rows than the vocabulary has pieces, as of NVIDIA and Megatron-LM."""

import json
import logging
import shutil

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_bert_flow as kbf
from keras_bert_flow.conversion.convert import convert
from keras_bert_flow.export.served_model import load_served
from keras_bert_flow.layers.masks import MASKED_SCORE
from keras_bert_flow.prediction.load import FILL_MASK
from keras_bert_flow.prediction.masked_lm import MaskFiller
from tests.oracles.tiny_model import check_directory

torch = pytest.importorskip("torch", reason="the reference needs torch")
transformers = pytest.importorskip("transformers", reason="the reference needs transformers")

PIECES, ROWS = 50, 56  # padded to a multiple of 8
SPARE = 6
TOLERANCE = 1e-5
INPUTS = {
    "input_ids": np.array([[2, 4, 7, 9, 3]]),
    "token_type_ids": np.zeros((1, 5), int),
    "attention_mask": np.ones((1, 5), int),
}
pytestmark = pytest.mark.any_backend


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """Return a padded masked LM of `transformers` that prefers the rows of no piece, with the tokenizer's files."""
    folder = tmp_path_factory.mktemp("theirs")
    sizes = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3, "intermediate_size": 40}
    model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=ROWS, **sizes, max_position_embeddings=16))
    with torch.no_grad():
        model.cls.predictions.bias += torch.arange(ROWS) * 0.1
    model.save_pretrained(folder)
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(PIECES - 5))]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    return folder


def see_reference(folder):
    model = transformers.BertForMaskedLM.from_pretrained(folder).eval()
    with torch.no_grad():
        return model(**{name: torch.tensor(value) for name, value in INPUTS.items()}).logits.numpy()


def test_rows_of_no_piece_are_counted_and_never_predicted(theirs, caplog):
    with caplog.at_level(logging.WARNING):
        filler = MaskFiller(theirs, top_k=PIECES)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"{theirs}: {SPARE} of {ROWS} rows of the token embeddings are of no piece")
    found = filler.predict(["[MASK] w2 w4"])[0][0]
    assert sorted(fill["token"] for fill in found) == [*range(PIECES)]
    served = keras.ops.convert_to_numpy(load_served(theirs, FILL_MASK).model(INPUTS)["logits"])
    np.testing.assert_allclose(served[..., :PIECES], see_reference(theirs)[..., :PIECES], atol=TOLERANCE)
    assert (served[..., PIECES:] == MASKED_SCORE).all()


def test_rows_of_no_piece_are_kept_and_not_trained(theirs, tmp_path):
    model = kbf.MaskedLM.from_preset(theirs)
    before = keras.ops.convert_to_numpy(model.get_layer("mlm").bias)
    model.compile(optimizer=keras.optimizers.SGD(1.0))
    inputs = {"token_ids": INPUTS["input_ids"], "segment_ids": INPUTS["token_type_ids"]}
    inputs |= {"padding_mask": INPUTS["attention_mask"], "mask_positions": np.array([[1, 2]])}
    loss = model.train_on_batch(inputs, np.array([[7, 8]]))
    assert np.isfinite(np.ravel(loss)).all()
    bias = keras.ops.convert_to_numpy(model.get_layer("mlm").bias)
    assert (bias[:PIECES] != before[:PIECES]).all() and (bias[PIECES:] == before[PIECES:]).all()
    model.save_to_preset(tmp_path / "ours", vocabulary_path=theirs / "vocab.txt", cased=True)
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["vocab_size"] == ROWS
    again = kbf.MaskedLM.from_preset(tmp_path / "ours")
    assert again.backbone.num_pieces == PIECES and again.backbone.vocabulary_size == ROWS
    served = keras.ops.convert_to_numpy(load_served(tmp_path / "ours", FILL_MASK).model(INPUTS)["logits"])
    np.testing.assert_allclose(served[..., :PIECES], see_reference(tmp_path / "ours")[..., :PIECES], atol=TOLERANCE)
    model.save(tmp_path / "model.keras")
    assert keras.saving.load_model(tmp_path / "model.keras", compile=False).backbone.num_pieces == PIECES


def test_padded_models_travel_between_formats(theirs, tmp_path):
    convert(theirs, tmp_path / "tf", "tensorflow")
    convert(tmp_path / "tf", tmp_path / "back")
    convert(theirs, tmp_path / "hub", "kerashub", gelu="tanh", mlm_gelu="erf", mlm_epsilon=1e-5)
    convert(tmp_path / "hub", tmp_path / "hub-back")
    rows = load_file(theirs / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    for name in ("back", "hub-back"):
        again = load_file(tmp_path / name / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
        np.testing.assert_array_equal(again, rows)
    (tmp_path / "vocab.txt").write_text((theirs / "vocab.txt").read_text() + "new\n")
    convert(theirs, tmp_path / "adapted", vocabulary=tmp_path / "vocab.txt")
    adapted = load_file(tmp_path / "adapted" / "model.safetensors")["bert.embeddings.word_embeddings.weight"]
    np.testing.assert_array_equal(adapted[:PIECES], rows[:PIECES])
    np.testing.assert_allclose(adapted[PIECES], rows[:PIECES].mean(axis=0), atol=1e-6)  # not of rows without a piece


def test_more_pieces_than_rows_are_refused_with_a_remedy_that_works(theirs, tmp_path):
    folder = shutil.copytree(theirs, tmp_path / "model")
    pieces = (folder / "vocab.txt").read_text() + "".join(f"new{n}\n" for n in range(10))
    (folder / "vocab.txt").write_text(pieces)
    with pytest.raises(ValueError, match=r"Received: 60 lines, vocabulary_size=56.*`resize_token_embeddings\(60\)`"):
        check_directory(folder)
    model = transformers.BertForMaskedLM.from_pretrained(folder)
    model.resize_token_embeddings(60)
    model.save_pretrained(folder)
    assert check_directory(folder)["vocabulary_size"] == 60


def test_tables_that_are_not_padded_are_refused(theirs, tmp_path):
    folder = shutil.copytree(theirs, tmp_path / "model")
    model = transformers.BertForMaskedLM.from_pretrained(folder)
    model.resize_token_embeddings(PIECES + 9)  # no multiple of 8, and more than a sixteenth
    model.save_pretrained(folder)
    with pytest.raises(ValueError, match="as many lines as the model has pieces. Received: 50 lines"):
        check_directory(folder)

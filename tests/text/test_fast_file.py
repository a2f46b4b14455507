"""The `tokenizer.json` of a vocabulary gives the ids of the vocabulary, in `tokenizers` and in `transformers`."""

import json
import os
from pathlib import Path

import pytest
import tokenizers

from keras_bert_flow.text.tokenizers.fast_file import encode_fast_tokenizer
from keras_bert_flow.text.tokenizers.files import read_tokenizer_file
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary.vocab_file import SPECIAL_PIECES, read_vocabulary

LETTERS = "abcdefghijklmnopqrstuvwxyzé"
PIECES = (
    *SPECIAL_PIECES,
    *LETTERS,
    *(f"##{letter}" for letter in LETTERS),
    *".,!?'-()",
    "the",
    "##ing",
    "A",
    "É",
    "中",
)
TEXTS = (
    "the cat is sitting, isn't it?",
    "The CAT; Élan élan café",
    "中文 and 1 2 3",
    "",
    "   ",
    "x" * 150,  # pieces here, and unknown where words end at 100 characters
    "x" * 250,
    "tab\tnew\nline\u200bzero \ufffd \x00control",
)


def write(folder, pieces, cased):
    path = folder / "tokenizer.json"
    path.write_bytes(encode_fast_tokenizer(pieces, cased))
    return path


@pytest.mark.parametrize("cased", [False, True])
def test_ids_are_those_of_the_vocabulary(tmp_path, cased):
    ours, theirs = (
        WordPieceTokenizer(PIECES, cased),
        tokenizers.Tokenizer.from_file(str(write(tmp_path, PIECES, cased))),
    )
    for text in TEXTS:
        assert theirs.encode(text, add_special_tokens=False).ids == [*ours.encode(text)], text
    pair = theirs.encode("the cat", "the")
    first, second = [*ours.encode("the cat")], [*ours.encode("the")]
    assert pair.ids == [ours.cls_id, *first, ours.sep_id, *second, ours.sep_id]
    assert pair.type_ids == [0] * (len(first) + 2) + [1] * (len(second) + 1)
    assert theirs.decode([*ours.encode("the sitting")]) == "the sitting"
    assert theirs.encode("[MASK]", add_special_tokens=False).ids == [ours.mask_id]


@pytest.mark.parametrize("cased", [False, True])
def test_it_is_read_back_as_the_vocabulary(tmp_path, cased):
    tokenizer = read_tokenizer_file(write(tmp_path, PIECES, cased))
    assert isinstance(tokenizer, WordPieceTokenizer)
    assert tokenizer.pieces == PIECES and tokenizer.cased == cased


def test_special_pieces_keep_their_places(tmp_path):
    pieces = ("a", *reversed(SPECIAL_PIECES), "b")
    content = json.loads(write(tmp_path, pieces, False).read_text())
    assert {token["content"]: token["id"] for token in content["added_tokens"]} == {
        piece: pieces.index(piece) for piece in SPECIAL_PIECES
    }


@pytest.mark.skipif("KBF_TEST_DATA" not in os.environ, reason="needs the published vocabularies")
@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_published_vocabulary_gives_the_ids_of_transformers(tmp_path, name):
    transformers = pytest.importorskip("transformers")
    data = Path(os.environ["KBF_TEST_DATA"])
    pieces = read_vocabulary(data / "vocab" / f"{name}_L-12_H-768_A-12.vocab.txt")
    path = write(tmp_path, pieces, name == "cased")
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
    ours = WordPieceTokenizer(pieces, name == "cased")
    lines = (data / "corpus" / "wiki_en_dev.txt").read_text().splitlines()[:2000]
    for line in lines:
        assert theirs(line, add_special_tokens=False)["input_ids"] == [*ours.encode(line)]

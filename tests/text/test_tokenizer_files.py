"""The `tokenizer.json` of a vocabulary gives the ids of the vocabulary, in `tokenizers` and in `transformers`."""

import json
import os
from pathlib import Path

import pytest
import tokenizers

from keras_bert_flow.text.tokenizers.files import (
    cut_long_words,
    encode_fast_tokenizer,
    make_cutting_tokenizer,
    read_tokenizer_file,
)
from keras_bert_flow.text.tokenizers.normalization import normalize_text
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES, read_vocabulary

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


@pytest.mark.first_form
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


@pytest.mark.parametrize("cased", [True, False])
def test_long_words_are_cut_as_they_are_counted(cased, tmp_path):
    letters = "กขคงจฉชซ\u0e35ab"
    pieces = [*SPECIAL_PIECES, *letters, *(f"##{letter}" for letter in letters), "##กข", "กขค"]
    texts = ["".join(letters[number * number % 11] for number in range(size)) for size in (1, 199, 200, 201, 400, 450)]
    texts += [f"ab {texts[-1]} {texts[1]}ab", "ab a-b"]
    tokenizer, plain = make_cutting_tokenizer(pieces, cased), WordPieceTokenizer([*pieces, "-"], cased)
    for text in texts[:-1]:
        words = cut_long_words(normalize_text(text, cased).split())
        assert all(len(word) <= 200 for word in words)
        expected = [piece for word in words for piece in plain.encode(word).tolist()]
        assert tokenizer.encode(text).tolist() == expected and tokenizer.unk_id not in expected
    assert plain.unk_id in plain.encode(texts[-2])
    tokenizer.write(tmp_path)
    again = read_tokenizer_file(tmp_path / "tokenizer.json")
    assert again.encode(texts[-2]).tolist() == tokenizer.encode(texts[-2]).tolist()
    assert (again.strips_accents, plain.strips_accents) == (not cased, not cased)
    transformers = pytest.importorskip("transformers", reason="the reference needs transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    assert theirs(texts[-2], add_special_tokens=False)["input_ids"] == tokenizer.encode(texts[-2]).tolist()

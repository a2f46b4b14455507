import os
import pickle
import subprocess
import sys
import unicodedata
from array import array
from pathlib import Path

import numpy as np
import pytest
import tokenizers

from keras_bert_flow.text.tokenizers import wordpiece as tokenizer_module
from keras_bert_flow.text.tokenizers.normalization import MAX_REMEMBERED_CHARACTERS
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES
from tests.oracles.google_tokenizer import google_pieces
from tests.patience import PATIENCE_SECONDS

DATA = os.environ.get("KBF_TEST_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="KBF_TEST_DATA is not set")

# Special pieces apart from each other and from 0, as in no published vocabulary.
PIECES = [
    "the",
    "[SEP]",
    "un",
    "##aff",
    "##able",
    "[MASK]",
    "[UNK]",
    "##a",
    "a",
    "[",
    "]",
    "mask",
    "[CLS]",
    "[PAD]",
    "İ",
]


def make_published(name):
    file = {
        "uncased": "uncased_L-12_H-768_A-12",
        "cased": "cased_L-12_H-768_A-12",
        "chinese": "chinese_L-12_H-768_A-12",
    }
    return WordPieceTokenizer.from_file(Path(DATA, "vocab", f"{file[name]}.vocab.txt"), cased=name == "cased")


def read_lines(name, count):
    return Path(DATA, "corpus", name).read_text(encoding="utf-8").split("\n")[:count]


def test_tokenizer_names_its_special_ids():
    tokenizer = WordPieceTokenizer(PIECES)
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id) == (
        13,
        6,
        12,
        1,
        5,
    )
    assert tokenizer.special_ids == (13, 6, 12, 1, 5)
    assert tokenizer.vocabulary_size == 15
    assert tokenizer.pieces == tuple(PIECES)


def test_tokenizer_marks_the_pieces_that_start_a_word():
    starts = WordPieceTokenizer(PIECES).starts_word
    assert starts.dtype == bool
    assert np.flatnonzero(~starts).tolist() == [3, 4, 7]


def test_tokenizer_takes_the_longest_match():
    ids = WordPieceTokenizer(PIECES).encode("The unaffable, unaa")
    assert ids.dtype == np.int32
    assert ids.tolist() == [0, 2, 3, 4, 6, 2, 7, 7]


def test_tokenizer_does_not_protect_special_pieces_in_text():
    assert WordPieceTokenizer(PIECES).encode("[MASK]").tolist() == [9, 11, 10]


def test_tokenizer_keeps_case_and_accents_if_cased():
    assert WordPieceTokenizer(PIECES, cased=True).encode("İ The the").tolist() == [14, 6, 0]


def test_tokenizer_encodes_nothing_to_nothing():
    ids = WordPieceTokenizer(PIECES).encode(" \u200b\n")
    assert ids.shape == (0,)
    assert ids.dtype == np.int32
    assert WordPieceTokenizer(PIECES).encode_batch([]) == []


@pytest.mark.parametrize(("length", "expected"), [(199, 199), (200, 200), (201, 1)])
def test_tokenizer_gives_up_on_words_over_200_characters(length, expected):
    ids = WordPieceTokenizer(PIECES).encode("a" * length)
    assert len(ids) == expected
    assert (ids[0] == 6) == (length > 200)


def test_tokenizer_encodes_a_batch_like_single_texts():
    tokenizer = WordPieceTokenizer(PIECES)
    texts = ["the unaffable", "", "a"]
    assert [ids.tolist() for ids in tokenizer.encode_batch(texts)] == [
        tokenizer.encode(text).tolist() for text in texts
    ]


def test_tokenizer_appends_the_ids_of_texts_to_an_array():
    tokenizer, ids = WordPieceTokenizer(PIECES), array("i")
    texts = ["the unaffable", "", "a \x00 ? a"]
    lengths = [tokenizer.encode_into(ids, text) for text in texts]
    encoded = tokenizer.encode_batch(texts)
    assert lengths == [len(each) for each in encoded]
    assert ids.tolist() == np.concatenate(encoded).tolist()


def test_tokenizer_decodes_pieces_to_words():
    tokenizer = WordPieceTokenizer(PIECES)
    ids = [12, 0, *tokenizer.encode("unaffable a"), 1]
    assert tokenizer.decode(ids) == "[CLS] the unaffable a [SEP]"
    assert tokenizer.decode(np.array(ids), skip_special=True) == "the unaffable a"
    assert tokenizer.decode([]) == ""


@pytest.mark.parametrize("cased", [False, True])
def test_tokenizer_survives_pickling(cased):
    tokenizer = WordPieceTokenizer(PIECES, cased)
    expected = tokenizer.encode("The unaffable İ").tolist()
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.encode("The unaffable İ").tolist() == expected
    assert (copy.cased, copy.special_ids) == (cased, tokenizer.special_ids)


def test_tokenizer_is_right_beyond_its_memory(monkeypatch):
    monkeypatch.setattr(tokenizer_module, "MAX_REMEMBERED_WORDS", 1)
    tokenizer = WordPieceTokenizer(PIECES)
    assert tokenizer.encode("the unaffable a unaffable").tolist() == [0, 2, 3, 4, 8, 2, 3, 4]
    assert tokenizer.encode("the, (the) unaffable.").tolist() == [0, 6, 6, 0, 6, 2, 3, 4, 6]
    assert len(tokenizer._ids) == len(tokenizer._word_ids) == 1


def test_tokenizer_refuses_pieces_without_specials():
    with pytest.raises(ValueError, match=r"without \[PAD\]"):
        WordPieceTokenizer(["a"])


def test_tokenizer_imports_no_backend():
    text = "keras_bert_flow.text"
    code = f"import sys, {text}.tokenizers.wordpiece, {text}.corpus.builtin, {text}.corpus.documents\n"
    code += "sys.exit(bool({'keras', 'tensorflow', 'jax', 'torch', 'scipy', 'apache_beam'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2]).returncode == 0


@pytest.mark.first_form
@needs_data
@pytest.mark.parametrize(
    ("name", "corpus"),
    [
        ("uncased", "wiki_en_dev.txt"),
        ("cased", "wiki_en_dev.txt"),
        ("uncased", "bert_sample_text.txt"),
        ("cased", "bert_sample_text.txt"),
        ("chinese", "bert_sample_text.txt"),
        ("chinese", "wiki_zh.txt"),
        ("uncased", "wiki_zh.txt"),
    ],
)
@pytest.mark.parametrize("count", [400, pytest.param(None, marks=pytest.mark.slow)])
def test_tokenizer_equals_the_original_on_real_text(name, corpus, count):
    tokenizer = make_published(name)
    vocabulary = {piece: piece_id for piece_id, piece in enumerate(tokenizer.pieces)}
    for line in read_lines(corpus, count):
        expected = [vocabulary[piece] for piece in google_pieces(line, vocabulary, tokenizer.cased)]
        assert tokenizer.encode(line).tolist() == expected


def assert_equals_the_original(name, codes):
    """Compare the ids of each character alone and inside a word."""
    tokenizer = make_published(name)
    vocabulary = {piece: piece_id for piece_id, piece in enumerate(tokenizer.pieces)}
    for code in codes:
        text = f"{chr(code)} un{chr(code)}Able"
        expected = [vocabulary[piece] for piece in google_pieces(text, vocabulary, tokenizer.cased)]
        assert tokenizer.encode(text).tolist() == expected, hex(code)


def assigned_codes():
    return (code for code in range(0x110000) if unicodedata.category(chr(code)) not in ("Cn", "Cs"))


@pytest.mark.first_form
@needs_data
@pytest.mark.parametrize("name", ["uncased", "cased", "chinese"])
def test_tokenizer_equals_the_original_on_every_kind_of_character(name):
    large = ("Co", "Lo", "So")
    chosen = [code for code in assigned_codes() if code % 101 == 0 or unicodedata.category(chr(code)) not in large]
    kinds = {unicodedata.category(chr(code)) for code in chosen}
    assert len(kinds) == 28  # all 30 of Unicode but unassigned and surrogates
    assert_equals_the_original(name, chosen)


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("name", ["uncased", "cased", "chinese"])
def test_tokenizer_equals_the_original_on_every_assigned_character(name):
    assert_equals_the_original(name, assigned_codes())


def test_tokenizer_drops_a_lone_surrogate_which_the_original_does_not_know():
    assert WordPieceTokenizer(PIECES).encode("the\ud800 un\udfffable").tolist() == [0, 2, 4]
    assert google_pieces("the\ud800", set(PIECES), False) == ["[UNK]"]


@pytest.mark.slow
def test_differences_from_tokenizers_are_those_in_the_docs():
    root = Path(__file__).parents[2]
    docs = (root / "docs" / "tokenizer.md").read_text(encoding="utf-8")
    heading = f"Python's Unicode {unicodedata.unidata_version}, `tokenizers` {tokenizers.__version__}:"
    if heading not in docs:
        pytest.skip(f"docs/tokenizer.md is about other versions than: {heading}")
    command = [sys.executable, root / "benchmarks" / "tokenizer_differences.py"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_SECONDS,
        env={**os.environ, "PYTHONPATH": str(root)},
    )
    section = docs[docs.index(heading) :].partition("\n## ")[0]
    assert done.stdout.strip().splitlines() == section.strip().splitlines()


@pytest.mark.first_form
@needs_data
@pytest.mark.parametrize("name", ["uncased", "cased"])
def test_tokenizer_equals_transformers_on_plain_english(name, tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer = make_published(name)
    (tmp_path / "vocab.txt").write_text("\n".join(tokenizer.pieces), encoding="utf-8")
    theirs = transformers.BertTokenizer(str(tmp_path / "vocab.txt"), do_lower_case=not tokenizer.cased)
    lines = read_lines("wiki_en_dev.txt", None)
    expected = theirs(lines, add_special_tokens=False)["input_ids"]
    assert [ids.tolist() for ids in tokenizer.encode_batch(lines)] == [list(ids) for ids in expected]


def test_long_chunks_are_not_remembered():
    """Text without spaces would fill the memory: each line of it is a chunk that never comes again."""
    tokenizer = WordPieceTokenizer([*SPECIAL_PIECES, "a", "##a", "中"])
    for number in range(5, 205):
        tokenizer.encode("中" * number + " " + "a" * number)
    remembered = [*tokenizer._ids, *tokenizer._word_ids]
    assert max(map(len, remembered)) == MAX_REMEMBERED_CHARACTERS
    assert tokenizer.encode("a" * 60).tolist() == [5, *[6] * 59]

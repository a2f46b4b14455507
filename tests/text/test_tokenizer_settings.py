"""What the files beside a vocabulary say of its tokenizer, against what `transformers` makes of the same files."""

import json
import pickle
import random
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer, BertTokenizer

from keras_bert_flow.conversion.directory_files import write_vocabulary
from keras_bert_flow.data.pretraining_records import RecordsFolder
from keras_bert_flow.text.tokenizers.files import encode_fast_tokenizer, find_case, find_difference, read_tokenizer_file
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES

# German, Turkish, Vietnamese, Hindi, Japanese, Korean, Chinese, with accents as characters of their own, and marks
TEXT = (
    "Die Grüße möchte ÄRGER café naïve; İstanbul ışık ÇOK! Tiếng Việt, हिन्दी में ガラス が 한국어 我爱 北京city "
    "[E1] [MASK] mid[E1]word a[e1]b Cafe\u0301 o\u0308de x\u00a0y \u200bz"
)
LETTERS = sorted({*TEXT, *TEXT.lower(), *"cafeoundiisgrusevt", "\u0301", "\u0308", "が", "ガ"} - {*" \u00a0\u200b"})
PIECES = (*SPECIAL_PIECES, *LETTERS, *(f"##{letter}" for letter in LETTERS), "möchte", "mochte", "##ger", "[E1]")
BERT = {"tokenizer_class": "BertTokenizer"}


def write(folder: Path, settings=None, pieces=PIECES, **files) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "bert"}')
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces), encoding="utf-8")
    for name, content in {"tokenizer_config": settings, **files}.items():
        if content is not None:
            (folder / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")
    return folder / "vocab.txt"


def encode_theirs(folder: Path, text: str) -> list[int]:
    return AutoTokenizer.from_pretrained(str(folder)).encode(text, add_special_tokens=False)


def make_texts(count: int) -> list[str]:
    rng, words = random.Random(7), TEXT.replace("[MASK]", "").split(" ")
    return [" ".join(rng.choices(words, k=9)) for _ in range(count)]


@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("strip", [None, True, False])
@pytest.mark.parametrize("han", [True, False])
def test_rules_of_a_file_give_the_ids_of_transformers(tmp_path, lower, strip, han):
    rules = {"do_lower_case": lower, "strip_accents": strip, "tokenize_chinese_chars": han}
    tokenizer = read_tokenizer_file(write(tmp_path, BERT | rules))
    fast = BertTokenizer(str(tmp_path / "vocab.txt"), **rules)
    for text in make_texts(40):
        assert tokenizer.encode(text).tolist() == fast.encode(text, add_special_tokens=False), text
        ids, starts, ends = tokenizer.encode_with_offsets(text)
        assert ids.tolist() == tokenizer.encode(text).tolist() and (starts < ends).all()
    assert tokenizer.normalize("möchte").split() == [("mochte" if (lower if strip is None else strip) else "möchte")]
    assert pickle.loads(pickle.dumps(tokenizer)).encode(TEXT).tolist() == tokenizer.encode(TEXT).tolist()


def test_rules_are_written_where_the_vocabulary_goes(tmp_path):
    """As `tokenizer.json` and `tokenizer_config.json` of a model, and as the settings beside records."""
    added = {str(len(PIECES)): {"content": "[E9]", "special": True, "normalized": False}}
    settings = BERT | {"do_lower_case": True, "strip_accents": False, "added_tokens_decoder": added}
    source = write(tmp_path / "theirs", settings)
    tokenizer = read_tokenizer_file(source)
    (tmp_path / "model").mkdir(), (tmp_path / "records").mkdir()
    write_vocabulary(tmp_path / "model", source, None, 64)
    tokenizer.write(tmp_path / "records")
    (tmp_path / "model" / "config.json").write_text('{"model_type": "bert"}')
    text = "möchte [E9] Ärger[E9]"
    assert encode_theirs(tmp_path / "model", text) == tokenizer.encode(text).tolist()
    for folder in ("model", "records"):
        again = read_tokenizer_file(tmp_path / folder / "vocab.txt")
        assert find_difference(again, tokenizer) is None and again.encode(text).tolist() == encode_theirs(
            tmp_path / "theirs", text
        )
    alone = tmp_path / "model" / "tokenizer.json"
    (tmp_path / "model" / "vocab.txt").unlink()
    assert read_tokenizer_file(alone).encode(text).tolist() == tokenizer.encode(text).tolist()


E1 = {"content": "[E1]", "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
LEFT = {"content": "<b>", "lstrip": True, "normalized": False, "special": False}
WORD = {"content": "möchte", "single_word": True, "normalized": True, "special": False}


@pytest.mark.parametrize(
    "files",
    [
        {"tokenizer_config": {"added_tokens_decoder": {str(PIECES.index("[E1]")): E1}}},
        {"tokenizer_config": {"added_tokens_decoder": {str(len(PIECES)): LEFT, str(PIECES.index("möchte")): WORD}}},
        {"tokenizer_config": {"additional_special_tokens": ["[E1]", "[NEW]"]}},
        {"tokenizer_config": {"extra_special_tokens": {"entity": "[E1]"}}},
        {"tokenizer_config": {}, "special_tokens_map": {"additional_special_tokens": ["[E1]"]}},
        {"tokenizer_config": {}, "added_tokens": {"[E1]": PIECES.index("[E1]"), "mid": len(PIECES)}},
        {"tokenizer_config": {}, "tokenizer": E1 | {"id": PIECES.index("[E1]")}},
        {"tokenizer": WORD | {"id": len(PIECES), "content": "<e>", "lstrip": False, "rstrip": True}},
    ],
    ids=lambda files: "+".join(f"{name}:{','.join(content)[:20]}" for name, content in files.items()),
)
def test_added_tokens_are_one_token(tmp_path, files):
    files = dict(files)
    if "tokenizer" in files:
        content = json.loads(encode_fast_tokenizer(PIECES, False))
        content["added_tokens"].append({"single_word": False, "lstrip": False, "rstrip": False} | files["tokenizer"])
        files["tokenizer"] = content
    settings = files.pop("tokenizer_config", None)
    tokenizer = read_tokenizer_file(write(tmp_path, None if settings is None else BERT | settings, **files))
    texts = ["ärger [E1] city[E1]x [NEW]", "a <b>c  <b> möchte Möchtex möchte.", "x <e>  y<e>", "mid [e1]", "[MASK]"]
    fast = AutoTokenizer.from_pretrained(str(tmp_path))
    assert len(fast) == tokenizer.vocabulary_size
    for text in texts[:-1]:
        wanted = fast.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text).tolist() == wanted, text
        ids, starts, ends = tokenizer.encode_with_offsets(text)
        assert ids.tolist() == wanted and (starts < ends).all() and (np.diff(starts) >= 0).all()
    assert tokenizer.mask_id not in tokenizer.encode("[MASK]")
    # A tokenizer.json alone says the same.
    if "tokenizer" in files:
        (tmp_path / "vocab.txt").unlink()
        alone = read_tokenizer_file(tmp_path / "tokenizer.json")
        assert [alone.encode(text).tolist() for text in texts] == [tokenizer.encode(text).tolist() for text in texts]


@pytest.mark.parametrize(
    ("settings", "received"),
    [
        ({"tokenizer_class": "BertJapaneseTokenizer"}, "tokenizer_class.*BertJapaneseTokenizer"),
        ({"tokenizer_class": "HerbertTokenizerFast"}, "tokenizer_class.*HerbertTokenizerFast"),
        ({"tokenizer_class": ["x"]}, "tokenizer_class"),
        ({"word_tokenizer_type": "mecab"}, "word_tokenizer_type.*mecab"),
        ({"never_split": ["a"]}, "never_split"),
        ({"do_basic_tokenize": False}, "do_basic_tokenize"),
        ({"wordpieces_prefix": "@@"}, "wordpieces_prefix"),
        ({"truncation_side": "left"}, "truncation_side.*left"),
        ({"split_special_tokens": True}, "split_special_tokens"),
        ({"cls_token": "a"}, r"cls_token.*\[CLS\]"),
        ({"sep_token": {"content": "</s>"}}, r"sep_token"),
        ({"strip_accents": "no"}, "strip_accents"),
        ({"added_tokens_decoder": {"3000": E1}}, "ids that follow"),
        ({"added_tokens_decoder": {"x": E1}}, "added_tokens_decoder"),
        ({"added_tokens_decoder": {"5": 5}}, "added token must be"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(tmp_path, settings, received):
    file = write(tmp_path, BERT | settings)
    with pytest.raises(ValueError, match=received) as caught:
        read_tokenizer_file(file)
    assert "\n" not in str(caught.value)


def test_unknown_fields_are_named(tmp_path, caplog):
    read_tokenizer_file(write(tmp_path, BERT | {"shuffle_words": True, "max_length": 5}))
    assert "'shuffle_words'" in caplog.text and "max_length" not in caplog.text


def change(**normalizer):
    content = json.loads(encode_fast_tokenizer(PIECES, False))
    content["normalizer"] |= normalizer
    return content


@pytest.mark.parametrize(
    ("settings", "fast", "received"),
    [
        ({"do_lower_case": False}, change(), "do_lower_case` true and false"),
        ({"strip_accents": False}, change(), "strip_accents` true and false"),
        ({"strip_accents": None}, change(strip_accents=False), "strip_accents"),
        ({"tokenize_chinese_chars": True}, change(handle_chinese_chars=False), "tokenize_chinese_chars"),
        (BERT, change(lowercase=False), "must say `do_lower_case`"),
        ({"do_lower_case": True}, change(strip_accents=False), "must say `strip_accents`"),
        ({"do_lower_case": True}, change(clean_text=False), "another kind"),
    ],
)
def test_files_that_contradict_each_other_are_refused(tmp_path, settings, fast, received):
    file = write(tmp_path, settings, tokenizer=fast)
    with pytest.raises(ValueError, match=received):
        read_tokenizer_file(file)


def test_two_vocabularies_in_one_folder_are_refused(tmp_path):
    file = write(tmp_path, pieces=(*PIECES[:-1], "other"), tokenizer=change())
    with pytest.raises(ValueError, match="must hold the pieces of vocab.txt beside it. Received: another piece"):
        read_tokenizer_file(file)


@pytest.mark.parametrize("beside", ["tokenizer_config", "tokenizer", "manifest"])
def test_case_is_what_the_files_say(tmp_path, beside):
    contents = {
        "tokenizer_config": {"do_lower_case": False},
        "tokenizer": change(lowercase=False),
        "manifest": {"stage": "vocabulary", "config": {"cased": True}},
    }
    file = write(tmp_path, **{beside: contents[beside]})
    assert find_case(file, None) and read_tokenizer_file(file).cased
    with pytest.raises(ValueError, match="`cased` must be as the tokenizer has it. Received: false, .* Give --cased"):
        read_tokenizer_file(file, cased=False)


def test_a_bare_vocabulary_with_capitals_needs_a_word(tmp_path):
    cased = write(tmp_path / "cased", pieces=(*SPECIAL_PIECES, "The", "the", "a"))
    uncased = write(tmp_path / "uncased", pieces=(*SPECIAL_PIECES, "the", "möchte"))
    with pytest.raises(ValueError, match=r"must be known .* Give --cased or --uncased"):
        find_case(cased, None)
    assert find_case(cased, True) and not find_case(cased, False) and not find_case(uncased, None)


@pytest.mark.parametrize(
    ("settings", "received"),
    [
        ({"do_lower_case": False}, "do_lower_case"),
        ({"strip_accents": False}, "strip_accents"),
        ({"tokenize_chinese_chars": False}, "tokenize_chinese_chars"),
        ({"additional_special_tokens": ["[E1]"]}, "added_tokens_decoder"),
    ],
)
def test_records_of_another_tokenizer_are_refused(tmp_path, settings, received):
    """The vocabulary is the same; how it is used is not."""
    plain, other = write(tmp_path / "a", BERT), write(tmp_path / "b", BERT | settings)
    RecordsFolder(plain.parent).check_vocabulary(len(PIECES), plain)
    for first, second in ((plain, other), (other, plain)):
        with pytest.raises(ValueError, match=f"must be made with the model's tokenizer.*{received}"):
            RecordsFolder(first.parent).check_vocabulary(len(PIECES), second)

"""Tokenizers of other families against the library that reads them, and against what `transformers` makes of them."""

import base64
import json
import pickle

import numpy as np
import pytest
import tokenizers
import transformers
from tokenizers import processors

from keras_bert_flow.tasks.core.task import join_texts
from keras_bert_flow.text.tokenizers.files import find_difference
from keras_bert_flow.text.tokenizers.loaded import KNOWN_PATTERNS, LoadedTokenizer
from tests.oracles.other_tokenizers import TEXTS, make_byte_fallback, make_byte_level, make_modern, make_unigram

UNSEEN = "Why did the owner of hôtel 北京 close early?  Nobody knew ☃."
MAKERS = {"byte-level": make_byte_level, "unigram": make_unigram, "modern": make_modern}
MAKERS |= {"byte-fallback": make_byte_fallback}


@pytest.fixture(params=MAKERS)
def pair(request):
    """The library's tokenizer and ours of the same file."""
    theirs = MAKERS[request.param]()
    return theirs, LoadedTokenizer(theirs.to_str())


def test_ids_are_those_of_the_library(pair):
    theirs, ours = pair
    for text in (*TEXTS, UNSEEN, "", "  e\u0301clair      \n\n\t x", "[unused1]   <|padding|>"):
        assert ours.encode(text).tolist() == theirs.encode(text, add_special_tokens=False).ids
    assert [ids.tolist() for ids in ours.encode_batch(TEXTS)] == [ours.encode(text).tolist() for text in TEXTS]
    assert ours.vocabulary_size == theirs.get_vocab_size() == len(ours.pieces)
    assert ours.decode(ours.encode(TEXTS[0])) == theirs.decode(theirs.encode(TEXTS[0]).ids)


def test_texts_are_joined_as_transformers_joins_them(pair):
    theirs, ours = pair
    ids = {"cls_token": ours.cls_id, "sep_token": ours.sep_id, "pad_token": ours.pad_id}
    names = {name: ours.pieces[number] for name, number in ids.items()}
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=theirs, **names)
    first, second = (ours.encode(text) for text in TEXTS[:2])
    assert join_texts(ours, first, None, 200)[0].tolist() == fast(TEXTS[0])["input_ids"]
    assert join_texts(ours, first, second, 200)[0].tolist() == fast(*TEXTS[:2])["input_ids"]
    assert ours.separators == (2 if ours.mask_token == "<mask>" else 1)
    cut, first_length = join_texts(ours, first, second, 20)
    assert len(cut) == 20 and cut[first_length - 1] == ours.sep_id and cut[-1] == ours.sep_id


def test_special_tokens_in_a_text_are_text(pair):
    _, ours = pair
    special = {ours.sep_id, ours.mask_id, ours.pad_id, ours.cls_id}
    for token in ("<mask>", "</s>", "[SEP]", "[MASK]", "<pad>"):
        assert not set(ours.encode(f"an {token} early").tolist()) & special


def test_offsets_name_what_a_piece_was_made_of(pair):
    theirs, ours = pair
    for text in (*TEXTS, UNSEEN):
        ids, starts, ends = ours.encode_with_offsets(text)
        assert ids.tolist() == ours.encode(text).tolist() and len(ids) == len(starts) == len(ends)
        assert (starts <= ends).all() and (np.diff(ends) >= 0).all()
        places = dict.fromkeys(zip(starts.tolist(), ends.tolist(), strict=True))
        parts = [text[start:end] for start, end in places]
        assert set("".join(text.split())) <= set("".join(parts))
        assert all(part == part.lstrip() for part in parts if part.strip())


def test_words_are_encoded_as_in_a_text(pair):
    theirs, ours = pair
    words = ["the", "owner", "knew", "nobody", "early"]
    in_text = ours.encode(" " + " ".join(words)).tolist()
    assert np.concatenate([ours.encode_word(word) for word in words]).tolist() == in_text
    starts = ours.starts_word[in_text]
    assert starts.sum() == len(words) and starts[0]


def test_pieces_join_a_text(pair):
    _, ours = pair
    mark = "Ġ" if ours.mask_token == "<mask>" else "▁"
    assert ours.append("The owner ", f"{mark}knew") == ours.append("The owner", f"{mark}knew") == "The owner knew"
    assert ours.append("The own", "er") == "The owner"


def test_written_and_pickled_tokenizers_are_the_same(pair, tmp_path):
    _, ours = pair
    ours.write(tmp_path)
    for again in (LoadedTokenizer.from_file(tmp_path / "tokenizer.json"), pickle.loads(pickle.dumps(ours))):
        assert again.pieces == ours.pieces and again.special_ids == ours.special_ids
        assert again.encode(UNSEEN).tolist() == ours.encode(UNSEEN).tolist()


def test_unknown_characters_are_bytes_with_a_fallback():
    ours, text = LoadedTokenizer(make_byte_fallback().to_str()), "猫 ☃"
    ids = ours.encode(text)
    marked = {
        ours.pieces.index("▁"),
        *(ours.pieces.index(f"<0x{byte:02X}>") for byte in text.replace(" ", "").encode()),
    }
    assert {*ids.tolist()} == marked and ours.unk_id not in ids
    assert ours.decode(ids) == text and ours.mask_id == len(ours.pieces) - 1


def test_special_tokens_may_have_any_names():
    content = make_unigram().to_str().replace("[MASK]", "[GAP]")
    with pytest.raises(
        ValueError, match=r"must have a token for mask, such as \[MASK\] or <mask>. Received: none"
    ) as caught:
        LoadedTokenizer(content)
    assert "\n" not in str(caught.value)
    assert LoadedTokenizer(content, {"mask_token": {"content": "[GAP]"}}).mask_token == "[GAP]"


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"model": {"type": "BPE", "vocab": 1, "merges": []}}'])
def test_what_is_no_tokenizer_is_refused_in_a_line(content):
    with pytest.raises(ValueError, match="no tokenizer") as caught:
        LoadedTokenizer(content, source="x/tokenizer.json")
    assert str(caught.value).startswith("x/tokenizer.json: ") and "\n" not in str(caught.value)


def test_special_entity_markers_are_one_token(pair):
    """As in `transformers`; only the five tokens of the structure are ordinary text."""
    theirs, ours = pair
    theirs.add_special_tokens([tokenizers.AddedToken("[E1]", lstrip=True), tokenizers.AddedToken("[E2]")])
    theirs.add_tokens(["owner x"])
    ours = LoadedTokenizer(theirs.to_str())
    for text in ("The [E1] owner[E2] knew", "an owner x early", UNSEEN):
        assert ours.encode(text).tolist() == theirs.encode(text, add_special_tokens=False).ids
    assert not {ours.mask_id, ours.sep_id} & {*ours.encode(f"The {ours.mask_token} [SEP] </s>").tolist()}
    named = LoadedTokenizer(theirs.to_str(), {"additional_special_tokens": ["knew"]})
    assert named.vocabulary_size == theirs.get_vocab_size() + 1 and named.encode("knew").tolist()[-1] == len(
        ours.pieces
    )
    assert find_difference(ours, named) == "other pieces" and find_difference(ours, ours) is None


def test_lone_surrogates_are_replaced(pair):
    _, ours = pair
    text = "an owner \ud800 knew"
    wanted = ours.encode(text.replace("\ud800", "\ufffd")).tolist()
    assert ours.encode(text).tolist() == ours.encode_batch([text])[0].tolist() == wanted
    assert ours.encode_with_offsets(text)[2][-1] == len(text)


def test_padding_is_on_the_right_in_what_is_written(pair, tmp_path):
    theirs, _ = pair
    theirs.enable_padding(direction="left", pad_id=1, pad_token="<pad>")
    ours = LoadedTokenizer(theirs.to_str(), {"padding_side": "left", "mask_token": "[MASK]", "unk_token": "<unk>"})
    ours.write(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["padding_side"] == "right"
    assert json.loads((tmp_path / "tokenizer.json").read_text())["padding"]["direction"] == "Right"
    with pytest.raises(ValueError, match="`truncation_side` must be None or 'right'. Received: 'left'"):
        LoadedTokenizer(theirs.to_str(), {"truncation_side": "left"})


def replace_with(count):
    return {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * count}


def split_at(pattern):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


def map_with(table):
    return {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(table).decode()}


@pytest.mark.parametrize(
    ("stage", "part", "received"),
    [
        ("normalizer", {"type": "Sequence", "normalizers": [replace_with(1000)] * 4}, "at most 64 characters of one"),
        ("normalizer", {"type": "Sequence", "normalizers": [replace_with(3)] * 4}, "Replace, up to 81"),
        ("normalizer", {"type": "Prepend", "prepend": "a" * 99}, "normalizer.prepend"),
        ("normalizer", {"type": "Replace", "pattern": {"String": ""}, "content": "a" * 99}, "up to 100"),
        ("normalizer", map_with((4).to_bytes(4, "little") + bytes(4) + b"x" * 1000), "Precompiled, up to 1,000"),
        ("normalizer", map_with(b""), r"no tokenizer \(.*precompiled"),
        ("normalizer", map_with((4).to_bytes(4, "little") + b"\xff" * 4 + b"x"), r"no tokenizer \("),
        ("pre_tokenizer", split_at("(x+x+)+y"), r"pre_tokenizer.pattern.*\(x\+x\+\)\+y"),
        ("pre_tokenizer", {"type": "Sequence", "pretokenizers": [split_at("(a|a)*b")]}, "pre_tokenizer.pattern"),
        ("pre_tokenizer", split_at("x*"), "pre_tokenizer.pattern"),
        ("pre_tokenizer", {"type": "FixedLength", "length": 0}, r"no tokenizer \("),
        (
            "post_processor",
            {
                "type": "TemplateProcessing",
                "single": [],
                "pair": [{"SpecialToken": {"id": "[X]", "type_id": 0}}],
                "special_tokens": {},
            },
            "no tokenizer",
        ),
    ],
    ids=str,
)
def test_tokenizers_that_may_take_all_memory_or_time_are_refused(stage, part, received, capfd):
    content = json.loads(make_unigram().to_str()) | {stage: part}
    with pytest.raises(ValueError, match=received) as caught:
        LoadedTokenizer(json.dumps(content), source="x/tokenizer.json")
    assert str(caught.value).startswith("x/tokenizer.json: ") and "\n" not in str(caught.value)
    assert "panicked" not in capfd.readouterr().err


@pytest.mark.parametrize("pattern", [" {2,}", r"\s+", r"\p{L}+|\p{N}|[^\s\p{L}]+", r"[!&,]+", *sorted(KNOWN_PATTERNS)])
def test_harmless_patterns_are_accepted(pattern):
    content = json.loads(make_unigram().to_str())
    content["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split_at(pattern), content["pre_tokenizer"]]}
    LoadedTokenizer(json.dumps(content))


def test_chance_in_a_tokenizer_is_refused():
    content = json.loads(make_byte_level().to_str())
    content["model"]["dropout"] = 0.1
    with pytest.raises(ValueError, match="`model.dropout` must be 0"):
        LoadedTokenizer(json.dumps(content))


def test_files_that_contradict_each_other_are_refused():
    with pytest.raises(ValueError, match="`pre_tokenizer.add_prefix_space` false, and `add_prefix_space` true there"):
        LoadedTokenizer(make_byte_level().to_str(), {"add_prefix_space": True})
    with pytest.raises(ValueError, match="tokenizer_class.*BertJapaneseTokenizer"):
        LoadedTokenizer(make_byte_level().to_str(), {"tokenizer_class": "BertJapaneseTokenizer"})


def test_tokenizers_of_other_models_are_refused():
    made = make_byte_level()
    made.post_processor = processors.ByteLevel()  # as GPT-2's
    with pytest.raises(ValueError, match=r"must join two texts as \[CLS\] A \[SEP\] B \[SEP\]. Received: "):
        LoadedTokenizer(made.to_str())
    gap = json.loads(make_byte_level().to_str())
    gap["model"]["vocab"]["!"] = 5000
    with pytest.raises(ValueError, match="must number its pieces from 0"):
        LoadedTokenizer(json.dumps(gap))

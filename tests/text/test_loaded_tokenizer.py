"""Tokenizers of other families against the library that reads them, and against what `transformers` makes of them."""

import json
import pickle

import numpy as np
import pytest
import transformers
from tokenizers import processors

from keras_bert_flow.tasks.core.features import join_texts
from keras_bert_flow.text.tokenizers.loaded import LoadedTokenizer
from tests.oracles.other_tokenizers import TEXTS, make_byte_level, make_unigram

UNSEEN = "Why did the owner of hôtel 北京 close early?  Nobody knew ☃."
MAKERS = {"byte-level": make_byte_level, "unigram": make_unigram}


@pytest.fixture(params=MAKERS)
def pair(request):
    """The library's tokenizer and ours of the same file."""
    theirs = MAKERS[request.param]()
    return theirs, LoadedTokenizer(theirs.to_str())


def test_ids_are_those_of_the_library(pair):
    theirs, ours = pair
    for text in (*TEXTS, UNSEEN, ""):
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


def test_tokenizers_of_other_models_are_refused():
    made = make_byte_level()
    made.post_processor = processors.ByteLevel()  # as GPT-2's
    with pytest.raises(ValueError, match=r"must join two texts as \[CLS\] A \[SEP\] B \[SEP\]. Received: "):
        LoadedTokenizer(made.to_str())
    gap = json.loads(make_byte_level().to_str())
    gap["model"]["vocab"]["!"] = 5000
    with pytest.raises(ValueError, match="must number its pieces from 0"):
        LoadedTokenizer(json.dumps(gap))

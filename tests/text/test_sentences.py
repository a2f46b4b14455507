import os
import random
import time
import unicodedata
from pathlib import Path

import pytest

from keras_bert_flow.text.corpus.documents import split_sentences

DATA = os.environ.get("KBF_TEST_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="KBF_TEST_DATA is not set")


def squeeze(text):
    return "".join(text.split())


# `|` marks where a sentence ends.
@pytest.mark.parametrize(
    "marked",
    [
        "One here.| Two there!| Three?| Four",
        "Mr. Smith met Dr. Jones and Prof. Lee in St. Louis.| They talked.",
        "It cost $8.0 million, i.e. more than Fig. 3 or No. 5 says (cf. Vol. 2).| It rose by 3.5%.| 25 people left.",
        "He joined the U.S. Army in the U.S.| The war went on.| J. R. R. Tolkien and George W. Bush saw it.",
        "Acme Inc. bought Foo Corp.| The deal was signed on Jan. 5 at 5 p.m. in Oslo, etc.| It held.",
        '"Go!" he said.| "Why?"| She ran (fast.)| Then (he left).| ‘So.’| “Well.”| Yes.',
        "Wait... what? he asked.| And then…| Nothing?!| Right.",
        "1. Buy milk.| 2. Go home.| He was born in 1990.| Good.",
        "See example.com or v1.2.3 for a.b.c and more.| End.",
        "Vitamin C.| It is good.| So do I.| We agree.| No.| That is it.",
        "a . b . c .| D is tokenised .| So . . .| Then",
        "他说：“你好。”|然后走了！？|真的；|好。|（完。）|结束",
        "「行こう。」|と彼は言った。|『はい！』|終わり",
        "यह वाक्य है।| दूसरा वाक्य।| هل هذا سؤال؟| نعم",
        "ဒါက တစ်ခု၊ ပြီးတော့။|နောက်တစ်ခု။| အဆုံး",  # Burmese, with a comma
        "នេះមួយ។| នេះពីរ៕|បី",  # Khmer
        "ይህ አንድ ነው።| ሁለት፧|ሶስት፨| አራት",  # Ethiopic
        "དང་པོ། །|གཉིས་པ།|གསུམ་པ༎| བཞི",  # Tibetan, with a double mark
        "Առաջինը։| Երկրորդը։| Երրորդը 3։5",  # Armenian
        "ꦱꦶꦗꦶ꧉|ꦭꦺꦴꦫꦺꦴ꧉|ꦠꦼꦭꦸ",  # Javanese
        "First line.|\nSecond line\ngoes on.|\tThird",
    ],
)
def test_sentences_end_where_a_reader_ends_them(marked):
    expected = [part.strip() for part in marked.split("|")]
    assert split_sentences(marked.replace("|", "")) == expected


def test_sentences_end_at_the_marks_that_unicode_names():
    regex = pytest.importorskip("regex", reason="has Unicode's properties; comes with transformers")
    commas = "\u104a"  # of modern Burmese
    marks = [chr(code) for code in range(0x20000) if regex.fullmatch(r"\p{Sentence_Terminal}", chr(code))]
    assert len(marks) > 140
    missed = [mark for mark in marks if len(split_sentences(f"One{mark} Two")) != 2 and mark not in commas]
    # U+2024, one dot of a leader, has the property from Unicode 15.1 on; this Python does not know the unassigned ones.
    assert [mark for mark in missed if mark != "\u2024" and unicodedata.category(mark) != "Cn"] == []


@pytest.mark.parametrize("text", ["", " ", "\n\t \u3000"])
def test_sentences_of_nothing_are_none(text):
    assert split_sentences(text) == []


@pytest.mark.parametrize("seed", range(300))
def test_sentences_lose_nothing_and_are_never_empty(seed):
    rng = random.Random(seed)
    text = "".join(rng.choices([*"..!?…。！；”\"')（ ( aB3é\n\u3000", "Mr", "No", " The", "U.S"], k=60))
    sentences = split_sentences(text)
    assert squeeze("".join(sentences)) == squeeze(text)
    assert all(sentence and sentence == sentence.strip() for sentence in sentences)


@pytest.mark.parametrize(
    "unit",
    [
        *("a ", ". ", '." ', "Dr. ", ". ((((((("),
        *(pytest.param(unit, marks=pytest.mark.slow) for unit in ("a", ".", "a.b", " ", "(", ".)", "1. ", "。", '"')),
    ],
)
def test_sentences_of_a_line_of_a_megabyte_take_seconds_at_most(unit):
    text = unit * (1_000_000 // len(unit))
    started_at = time.process_time()
    sentences = split_sentences(text)
    assert time.process_time() - started_at < 10  # quadratic work would take hours
    assert squeeze("".join(sentences)) == squeeze(text)


@needs_data
@pytest.mark.parametrize(("name", "least", "most"), [("wiki_en_dev.txt", 80, 220), ("wiki_zh.txt", 20, 70)])
def test_sentences_of_real_text_have_usual_lengths(name, least, most):
    text = Path(DATA, "corpus", name).read_text(encoding="utf-8")
    sentences = [sentence for line in text.split("\n") for sentence in split_sentences(line)]
    assert squeeze("".join(sentences)) == squeeze(text)
    lengths = sorted(map(len, sentences))
    assert least < lengths[len(lengths) // 2] < most
    assert sum(length > 600 for length in lengths) < 0.005 * len(lengths)


@needs_data
def test_sentences_of_the_sample_corpus_are_its_lines():
    lines = Path(DATA, "corpus", "bert_sample_text.txt").read_text(encoding="utf-8").split("\n")[1:]
    lines = [line for line in lines if line.strip()]
    kept = sum(split_sentences(line) == [line.strip()] for line in lines)
    assert kept >= 0.9 * len(lines)

import itertools
import random

import pytest

from keras_bert_flow.tasks.formats.tagged_words import (
    PREFIXES,
    SCHEMES,
    Span,
    detect_scheme,
    find_fault,
    find_other_spelling,
    is_tag,
    spans_of,
    tag_names,
    tags_of,
)

SPANS = [Span("PER", 0, 1), Span("PER", 1, 3), Span("LOC", 3, 4), Span("LOC", 6, 9)]
WRITTEN = {
    "IOB1": "I-PER B-PER I-PER I-LOC O O I-LOC I-LOC I-LOC O",
    "IOB2": "B-PER B-PER I-PER B-LOC O O B-LOC I-LOC I-LOC O",
    "BIOES": "S-PER B-PER E-PER S-LOC O O B-LOC I-LOC E-LOC O",
}


def place(sentence: int, word: int) -> str:
    return f"x.txt, sentence {sentence} word {word}"


def random_spans(rng: random.Random, length: int) -> list[Span]:
    borders = sorted(rng.sample(range(length + 1), rng.randint(2, length + 1)))
    pairs = itertools.pairwise(borders)
    return [Span(rng.choice(("PER", "LOC", "")), first, end) for first, end in pairs if rng.random() < 0.7]


@pytest.mark.parametrize("scheme", WRITTEN)
def test_spans_are_written_as_the_scheme_asks(scheme):
    tags = WRITTEN[scheme].split()
    assert tags_of(reversed(SPANS), 10, scheme) == tags
    for strict in (False, True):
        assert spans_of(tags, scheme, strict) == SPANS
    assert find_fault(tags, scheme) is None


@pytest.mark.parametrize("scheme", WRITTEN)
def test_any_spans_survive_being_written(scheme):
    rng = random.Random(7)
    for _ in range(2000):
        length = rng.randint(1, 10)
        spans = random_spans(rng, length)
        tags = tags_of(spans, length, scheme)
        assert spans_of(tags, scheme) == spans_of(tags, scheme, strict=True) == spans


@pytest.mark.parametrize(
    ("scheme", "tags", "lenient", "strict", "fault"),
    [
        ("IOB2", "O I-PER I-PER", [("PER", 1, 3)], [], 1),
        ("IOB2", "B-PER I-LOC", [("PER", 0, 1), ("LOC", 1, 2)], [("PER", 0, 1)], 1),
        ("IOB2", "B-PER O I-PER", [("PER", 0, 1), ("PER", 2, 3)], [("PER", 0, 1)], 2),
        ("IOB1", "B-PER I-PER O", [("PER", 0, 2)], [("PER", 1, 2)], 0),
        ("IOB1", "I-PER B-LOC", [("PER", 0, 1), ("LOC", 1, 2)], [("PER", 0, 1)], 1),
        ("BIOES", "B-PER I-PER O", [("PER", 0, 2)], [], 0),
        ("BIOES", "S-PER E-PER", [("PER", 0, 1), ("PER", 1, 2)], [("PER", 0, 1)], 1),
        ("BIOES", "B-PER E-LOC S-PER", [("PER", 0, 1), ("LOC", 1, 2), ("PER", 2, 3)], [("PER", 2, 3)], 0),
    ],
)
def test_illegal_sequences_are_read_leniently_or_dropped(scheme, tags, lenient, strict, fault):
    tags = tags.split()
    assert spans_of(tags, scheme) == lenient
    assert spans_of(tags, scheme, strict=True) == strict
    assert find_fault(tags, scheme) == fault


def test_a_plain_tag_is_a_span_of_one_word_but_for_the_outside():
    assert spans_of(["N", "O", "V-x"], "plain") == [("N", 0, 1), ("V-x", 2, 3)]
    assert tags_of([Span("N", 1, 2)], 3, "plain") == ["O", "N", "O"]


@pytest.mark.parametrize(
    ("scheme", "spans", "found"),
    [
        ("IOB2", [Span("A", 0, 2), Span("B", 1, 3)], "('B', 1, 3)"),
        ("IOB2", [Span("A", 2, 5)], "('A', 2, 5)"),
        ("BIOES", [Span("A", 2, 2)], "('A', 2, 2)"),
        ("plain", [Span("A", 1, 3)], "IOB2 or BIOES"),
    ],
)
def test_spans_that_cannot_be_written_are_refused(scheme, spans, found):
    with pytest.raises(ValueError, match="Received: ") as caught:
        tags_of(spans, 4, scheme)
    assert found in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("scheme", WRITTEN)
def test_scheme_is_detected_from_its_tags(scheme):
    assert detect_scheme([["O"], WRITTEN[scheme].split()], place) == scheme


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [
        ("Art N V", "plain"),
        ("-LRB- NN , . O", "plain"),
        ("PER O LOC", "plain"),
        ("B I O", "IOB2"),
        ("O I I B", "IOB1"),
        ("S-a O", "BIOES"),
    ],
)
def test_scheme_is_detected_of_tags_without_prefix_or_type(tags, scheme):
    assert detect_scheme([tags.split()], place) == scheme


@pytest.mark.parametrize(
    ("sentences", "found"),
    [
        (["B-PER O", "O I-PER B-LOC"], ("sentence 1 word 1", "IOB2", "'I-PER'", "'O I-PER B-LOC'", "1 of 2")),
        (["I-PER O", "B-PER O", "B-LOC I-LOC"], ("sentence 0 word 0", "IOB2", "1 of 3")),
        (["I-PER B-PER", "B-LOC I-LOC", "I-PER"], ("sentence 1 word 0", "IOB1", "'B-LOC'", "1 of 3")),
        (["B-PER E-PER", "O B-LOC I-LOC O"], ("sentence 1 word 1", "BIOES", "'B-LOC'")),
        (["B-PER O", "O PER"], ("sentence 1 word 1", "'PER'")),
        (["O O", "O"], ("Received: only O",)),
    ],
)
def test_tags_of_no_scheme_are_refused_with_their_place(sentences, found):
    with pytest.raises(ValueError) as caught:
        detect_scheme([sentence.split() for sentence in sentences], place)
    message = str(caught.value)
    assert "Received: " in message and "\n" not in message
    assert all(part in message for part in found), message


# Read as plain tags, predictions that are all `o` would have scored .9 here, as one more type of span.
@pytest.mark.parametrize(
    ("tags", "scheme", "remedy"),
    [
        ("o b-per i-per o b-loc", "'b-loc', which looks like a scheme in lower case", "Write the letters in capitals"),
        ("o B-PER I-PER o", "'o', which looks like a scheme whose O is in lower case", "Write O"),
        ("O B_PER I_PER", "'B_PER', which looks like a scheme with '_' for the hyphen", "Write B-PER"),
        ("O b:per i:per", "a scheme with ':'", "Write B-PER"),
        ("O PER-B PER-I", "'PER-B', which looks like a scheme whose letter is at the end", "B-PER for PER-B"),
        ("O U-PER O U-LOC", "'U-LOC', which looks like BILOU", "S- for U-"),
        ("B-PER I-PER L-PER O U-LOC", "BILOU", "E- for L-"),
        ("B-PER M-PER E-PER S-LOC O", "'M-PER', which looks like BMES", "I- for M-"),
        ("B M E S S B E", "'M', which looks like BMES without types", "I for M"),
    ],
)
def test_a_scheme_in_another_spelling_is_refused_by_name(tags, scheme, remedy):
    with pytest.raises(ValueError) as caught:
        detect_scheme([["O"], tags.split()], place)
    message = str(caught.value)
    assert message.startswith("x.txt, sentence 1 word ") and "\n" not in message
    assert scheme in message and remedy in message and "`task.scheme: plain`" in message


@pytest.mark.parametrize("tags", ["N V Adj", "NN-HL NP-TL VB", "person-actor O building-hotel", "B I O", "-LRB- : . O"])
def test_other_tags_are_taken_as_they_are(tags):
    assert find_other_spelling(tags.split()) is None


def test_tag_names_hold_what_a_type_may_need_though_it_did_not_occur():
    assert tag_names(["B-PER", "I-LOC", "B-A-B"], "IOB2") == ("O", "B-A-B", "I-A-B", "B-LOC", "I-LOC", "B-PER", "I-PER")
    assert tag_names(["S-x"], "BIOES") == ("O", "B-x", "I-x", "E-x", "S-x")
    assert tag_names(["B"], "IOB1") == ("O", "B", "I")
    assert tag_names(["V", "N", "V"], "plain") == ("N", "V")


def test_is_tag_knows_the_letters_of_each_scheme():
    for scheme, letters in PREFIXES.items():
        known = {tag for letter in "BIESLUX" for tag in (letter, f"{letter}-x-y") if is_tag(tag, scheme)}
        assert known == {tag for letter in letters for tag in (letter, f"{letter}-x-y")}
        assert is_tag("O", scheme) and not any(is_tag(tag, scheme) for tag in ("", "B-", "BI-x", "PER", "O-x", "-x"))
    assert set(SCHEMES) == {*PREFIXES, "plain"}

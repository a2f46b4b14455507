import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from keras_bert_flow.tasks.core.task import IGNORED, Features
from keras_bert_flow.tasks.formats.conll import write_conll
from keras_bert_flow.tasks.formats.tagged_words import TaggedWords, find_fault, spans_of
from keras_bert_flow.tasks.token_classification import TokenClassification
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES

DATA = os.environ.get("KBF_TEST_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="KBF_TEST_DATA is not set")
PIECES = [
    *SPECIAL_PIECES,
    "jan",
    "##sen",
    "##s",
    "woont",
    "in",
    "gent",
    "brugge",
    ".",
    "-",
]
TOKENIZER = WordPieceTokenizer(PIECES)
JAN = TaggedWords(
    ("Jan", "Jansens", "woont", "in", "Gent"), ("B-PER", "I-PER", "O", "O", "B-LOC"), "t.txt", tuple(range(1, 6))
)
GENT = TaggedWords(("Gent-Brugge", "\u200b", "."), ("B-LOC", "O", "O"), "t.txt", (7, 8, 9))
TASK = TokenClassification().learn([JAN, GENT])


def perfect_logits(features: Features, tags: int, seed: int = 0) -> list[np.ndarray]:
    """Answer with the label where there is one, and with anything, surely, where there is none."""
    rng = np.random.default_rng(seed)
    answers = []
    for labels in features.labels["logits"]:
        logits = rng.normal(size=(len(labels), tags)).astype(np.float32) * 10
        labelled = np.flatnonzero(labels != IGNORED)
        logits[labelled] = 0
        logits[labelled, labels[labelled]] = 1
        answers.append(logits)
    return answers


def message_of(call, *args, **kwargs) -> str:
    with pytest.raises(ValueError) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message and "Received: " in message
    return message


def test_first_pieces_have_the_label_and_every_word_has_one():
    features = TASK.encode(TOKENIZER, [JAN, GENT], 16)
    assert TASK.labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    #      [CLS] jan jan ##sen ##s woont in gent [SEP]; [CLS] gent - brugge [UNK] . [SEP]
    assert [ids.tolist() for ids in features.token_ids] == [[2, 5, 5, 6, 7, 8, 9, 10, 3], [2, 10, 13, 11, 1, 12, 3]]
    none = IGNORED
    assert [row.tolist() for row in features.labels["logits"]] == [
        [none, 3, 4, none, none, 0, 0, 1, none],
        [none, 1, none, none, 0, 0, none],
    ]
    assert features.first_lengths.tolist() == [9, 7] and features.examples.tolist() == [0, 1]
    for array in (*features.token_ids, *features.labels["logits"], features.first_lengths, features.examples):
        assert array.dtype == np.int32


def test_a_long_sentence_becomes_windows_and_each_word_has_one_label():
    features = replace(TASK, stride=2).encode(TOKENIZER, [GENT, JAN], 6)  # four pieces
    assert [ids.tolist()[1:-1] for ids in features.token_ids] == [
        [10, 13, 11, 1],  # gent - brugge [UNK]
        [1, 12],
        [5, 5, 6, 7],  # jan jan ##sen ##s
        [5, 6, 7, 8],
        [8, 9, 10],
    ]
    assert features.examples.tolist() == [0, 0, 1, 1, 1]
    assert all(len(ids) <= 6 for ids in features.token_ids)
    labels = np.concatenate(features.labels["logits"])
    # "Jansens" shows 1 piece before it in one window and 1 behind it in the next: the earlier one answers.
    assert labels[labels != IGNORED].tolist() == [1, 0, 0, 3, 4, 0, 0, 1]


def test_a_word_longer_than_a_window_is_shown_by_its_first_pieces():
    features = TASK.encode(TOKENIZER, [JAN], 4)  # two pieces; jan ##sen ##s is one too many
    assert [5, 6] in [ids.tolist()[1:-1] for ids in features.token_ids]
    (prediction,) = TASK.decode({"logits": perfect_logits(features, 5)}, features, [JAN])
    assert prediction["tags"] == list(JAN.tags)


def test_predictions_tell_tags_probabilities_and_spans():
    features = TASK.encode(TOKENIZER, [JAN, GENT], 16)
    predictions = TASK.decode({"logits": perfect_logits(features, 5)}, features, [JAN, GENT])
    assert [prediction["tags"] for prediction in predictions] == [list(JAN.tags), list(GENT.tags)]
    share = np.e / (np.e + 4)  # logits 1, 0, 0, 0, 0
    assert predictions[0]["probabilities"] == pytest.approx([share] * 5)
    assert predictions[0]["words"] == list(JAN.words)
    assert predictions[0]["spans"] == [
        {"type": "PER", "first_word": 0, "end_word": 2, "start": 0, "end": 11, "text": "Jan Jansens"},
        {"type": "LOC", "first_word": 4, "end_word": 5, "start": 21, "end": 25, "text": "Gent"},
    ]
    assert json.loads(json.dumps(predictions)) == predictions
    assert TASK.score([JAN, GENT], predictions) == {"precision": 1.0, "recall": 1.0, "f1": 1.0, "accuracy": 1.0}


def test_probabilities_of_huge_logits_are_finite():
    features = TASK.encode(TOKENIZER, [GENT], 16)
    logits = [np.full((7, 5), -3e38, dtype=np.float32)]
    logits[0][:, 2] = 3e38
    with np.errstate(over="raise", invalid="raise"):
        (prediction,) = TASK.decode({"logits": logits}, features, [GENT])
    assert prediction["probabilities"] == [1.0, 1.0, 1.0] and prediction["tags"] == ["I-LOC"] * 3


def test_raw_text_is_tagged_with_places_in_it():
    text = "  Jan   Jansens,\nwoont in (Gent)."
    example = TASK.make_example(text)
    assert example.words == ("Jan", "Jansens", ",", "woont", "in", "(", "Gent", ")", ".")
    features = TASK.encode(TOKENIZER, [example], 16)
    assert features.labels == {}
    logits = np.zeros((len(features.token_ids[0]), 5), dtype=np.float32)
    logits[:, 0] = 1
    for piece, tag in ((5, 3), (10, 1)):  # each jan is B-PER, gent is B-LOC
        logits[features.token_ids[0] == piece, tag] = 2
    (prediction,) = TASK.decode({"logits": [logits]}, features, [example])
    found = [(span["type"], span["text"], span["start"], span["end"]) for span in prediction["spans"]]
    assert found == [("PER", "Jan", 2, 5), ("PER", "Jansens", 8, 15), ("LOC", "Gent", 27, 31)]
    assert all(text[start:end] == name for _, name, start, end in found)


def test_a_blank_text_has_a_prediction_without_words():
    examples = [TASK.make_example(text) for text in (" \n", "Jan", "")]
    features = TASK.encode(TOKENIZER, examples, 8)
    assert [ids.tolist() for ids in features.token_ids] == [[2, 3], [2, 5, 3], [2, 3]]
    predictions = TASK.decode({"logits": [np.zeros((len(ids), 5)) for ids in features.token_ids]}, features, examples)
    assert [prediction["tags"] for prediction in predictions] == [[], ["O"], []]
    blank = TASK.encode(TOKENIZER, examples[:1], 8)
    assert TASK.decode({"logits": [np.zeros((2, 5))]}, blank, examples[:1])[0]["spans"] == []
    assert TASK.decode({"logits": []}, TASK.encode(TOKENIZER, [], 8), []) == []


def test_the_scheme_that_was_guessed_is_told():
    (line,) = TASK.describe_guesses(set())
    assert line == ("The tags are read as IOB2, as detected in the training file; `task.scheme` sets another.")
    assert TASK.describe_guesses({"scheme"}) == []
    plain = replace(TASK, scheme="plain")
    assert "plain, each a class of its own" in plain.describe_guesses(set())[0]


def test_plain_tags_are_learnt_and_compared_by_accuracy():
    train = [TaggedWords(("in", "Gent"), ("Prep", "N")), TaggedWords(("Jan", "woont"), ("N", "V"))]
    task = TokenClassification().learn(train)
    assert (task.scheme, task.main_metric, task.labels) == ("plain", "accuracy", ("N", "Prep", "V"))
    features = task.encode(TOKENIZER, train, 16)
    predictions = task.decode({"logits": perfect_logits(features, 3)}, features, train)
    assert [one["tags"] for one in predictions] == [list(one.tags) for one in train]
    assert [span["text"] for span in predictions[0]["spans"]] == ["in", "Gent"]


def test_guess_gives_the_commonest_tag_with_its_share():
    predictions = TASK.guess([JAN, GENT], [GENT])
    assert predictions == [{"words": list(GENT.words), "tags": ["O"] * 3, "probabilities": [0.5] * 3, "spans": []}]
    assert TASK.score([GENT], predictions) == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "accuracy": 2 / 3}


def test_types_are_measured_one_by_one():
    predictions = [{"tags": ["B-PER", "I-PER", "O", "O", "B-PER"]}, {"tags": ["B-LOC", "O", "O"]}]
    table = TASK.tabulate([JAN, GENT], predictions)
    assert {name: (row["gold"], row["predicted"], row["correct"]) for name, row in table.items()} == {
        "LOC": (2, 1, 1),
        "PER": (1, 2, 1),
    }


def test_a_named_scheme_reads_what_is_not_legal_and_strict_drops_it():
    odd = TaggedWords(("Jan", "woont"), ("I-PER", "O"), "t.txt", (1, 2))
    legal = TaggedWords(("Gent", "Brugge"), ("B-LOC", "I-LOC"), "t.txt", (4, 5))
    assert "t.txt, row 1: tags must be legal" in message_of(TokenClassification().learn, [odd, legal])
    task = TokenClassification(scheme="IOB2").learn([odd, legal])
    assert task.labels == ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")
    (prediction,) = task.guess([odd, odd, legal], [odd])
    assert prediction["tags"] == ["I-PER", "I-PER"] and len(prediction["spans"]) == 1
    (prediction,) = replace(task, strict=True).guess([odd, odd, legal], [odd])
    assert prediction["spans"] == []


@pytest.mark.parametrize(
    ("call", "found"),
    [
        (lambda: TASK.encode(TOKENIZER, [replace(JAN, tags=("B-ORG", "O", "O", "O", "O"))], 16), "t.txt, row 1: "),
        (lambda: TASK.encode(TOKENIZER, [JAN, replace(GENT, tags=None)], 16), "t.txt, row 7: "),
        (lambda: TASK.encode(TOKENIZER, [replace(GENT, tags=None), JAN], 16), "t.txt, row 7: "),
        (lambda: TASK.encode(TOKENIZER, [JAN], 2), "`sequence_length`"),
        (lambda: replace(TASK, stride=15).encode(TOKENIZER, [JAN], 16), "stride=15, sequence_length=16"),
        (lambda: TokenClassification(scheme="IOB2").learn([replace(GENT, tags=("O", "S-x", "O"))]), "t.txt, row 8: "),
        (lambda: TokenClassification(scheme="IOB2").learn([replace(GENT, tags=("O", "O", "O"))]), "at least two tags"),
        (lambda: TokenClassification().learn([replace(GENT, tags=None)]), "with labels"),
        (lambda: TokenClassification().learn([]), "none"),
        (lambda: TokenClassification(scheme="BILOU"), "'BILOU'"),
        (lambda: TokenClassification(main_metric="loss"), "'loss'"),
        (lambda: TokenClassification(stride=0), "`stride`"),
        (lambda: TASK.score([JAN, GENT], TASK.guess([JAN], [JAN])), "2 sentences, 1 predictions"),
        (lambda: TokenClassification().score([JAN], TASK.guess([JAN], [JAN])), "Learn"),
        (lambda: TASK.guess([], [JAN]), "at least one word"),
    ],
)
def test_faults_are_told_on_a_line_with_their_place(call, found):
    assert found in message_of(call)


def test_logits_of_another_task_are_refused():
    features = TASK.encode(TOKENIZER, [GENT], 16)
    assert "(length, 5)" in message_of(TASK.decode, {"logits": [np.zeros((7, 3))]}, features, [GENT])


@pytest.mark.first_form
@needs_data
@pytest.mark.parametrize(
    ("name", "cased", "sequence_length"), [("cased", True, 16), ("uncased", False, 64), ("cased", True, 128)]
)
def test_dutch_tags_survive_being_encoded_and_decoded(name, cased, sequence_length):
    tokenizer = WordPieceTokenizer.from_file(Path(DATA) / f"vocab/{name}_L-12_H-768_A-12.vocab.txt", cased=cased)
    task = TokenClassification()
    examples = task.read(Path(DATA) / "conll2002_ned/testa.txt")
    task = task.learn(examples)
    assert task.scheme == "IOB2" and len(task.labels) == 9
    features = task.encode(tokenizer, examples, sequence_length)
    assert sequence_length - 1 <= features.lengths.max() <= sequence_length
    assert len(features) > len(examples)  # some are cut
    assert sum(int((labels != IGNORED).sum()) for labels in features.labels["logits"]) == 37687  # one a word
    predictions = task.decode({"logits": perfect_logits(features, 9)}, features, examples)
    assert [one["tags"] for one in predictions] == [list(one.tags) for one in examples]
    spans = [[tuple(span.values())[:3] for span in one["spans"]] for one in predictions]
    assert spans == [spans_of(one.tags, "IOB2", strict=True) for one in examples]
    assert sum(map(len, spans)) == 703 + 748 + 686 + 479
    assert task.score(examples, predictions)["f1"] == 1.0


@pytest.mark.slow
@needs_data
def test_dutch_training_table_survives_whole():
    tokenizer = WordPieceTokenizer.from_file(Path(DATA) / "vocab/cased_L-12_H-768_A-12.vocab.txt", cased=True)
    task = TokenClassification()
    examples = task.read(Path(DATA) / "conll2002_ned/train.txt")
    assert all(find_fault(one.tags, "IOB2") is None for one in examples)
    task = task.learn(examples)
    features = task.encode(tokenizer, examples, 64)
    assert len(features) > len(examples) == 15806  # some are cut
    predictions = task.decode({"logits": perfect_logits(features, 9)}, features, examples)
    assert [one["tags"] for one in predictions] == [list(one.tags) for one in examples]
    counts = {name: row["correct"] for name, row in task.tabulate(examples, predictions).items()}
    assert counts == {"PER": 4716, "MISC": 3338, "LOC": 3208, "ORG": 2082}  # as many as the file has B- of each
    guessed = task.score(examples, task.guess(examples, examples))
    assert guessed["f1"] == 0.0 and guessed["accuracy"] == pytest.approx((183633 - 287) / 202644)


@needs_data
def test_dutch_predictions_are_written_and_read_again(tmp_path):
    task = TokenClassification()
    examples = task.read(Path(DATA) / "conll2002_ned/testa.txt", max_examples=200)
    task = task.learn(examples)
    write_conll(tmp_path / "out.txt", examples, [one["tags"] for one in task.guess(examples, examples)])
    again = replace(task, tag_column=1).read(tmp_path / "out.txt")
    assert [(one.words, one.tags) for one in again] == [(one.words, one.tags) for one in examples]


def test_logits_that_are_no_numbers_are_refused():
    features = TASK.encode(TOKENIZER, [JAN, GENT], 16)
    logits = perfect_logits(features, len(TASK.labels))
    logits[1][1, 2] = np.nan
    assert "the fine-tuning diverged" in message_of(TASK.decode, {"logits": logits}, features, [JAN, GENT])

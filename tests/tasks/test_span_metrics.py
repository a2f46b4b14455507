import random
import warnings

import pytest

from keras_bert_flow.tasks.core.metrics import make_table
from keras_bert_flow.tasks.formats.conll import count_spans, span_metrics
from keras_bert_flow.tasks.formats.tagged_words import PREFIXES, find_fault
from tests.oracles.conlleval import conlleval

CASES = 600
SEQEVAL_SCHEMES = {"IOB1": "IOB1", "IOB2": "IOB2", "BIOES": "IOBES"}


def make_span_table(gold, predicted, scheme, strict=False):
    counts = count_spans(gold, predicted, scheme, strict)
    return make_table(counts, counts.values())


def random_cases(seed: int, letters: str, types: tuple[str, ...] = ("PER", "LOC", "A-B")):
    """Draw gold and predicted tags of a few sentences; most sequences are legal in no scheme."""
    rng = random.Random(seed)
    tags = ["O", *(f"{letter}-{type_}" for letter in letters for type_ in types)]
    for _ in range(CASES):
        tags_here = rng.sample(tags, rng.randint(2, len(tags)))  # few tags make long spans, and agreement by chance
        lengths = [rng.randint(1, 12) for _ in range(rng.randint(1, 3))]
        gold = [rng.choices(tags_here, k=length) for length in lengths]
        agreement = rng.choice((0.0, 0.5, 0.9, 1.0))
        yield gold, [[tag if rng.random() < agreement else rng.choice(tags_here) for tag in one] for one in gold]


def total_of(counts: dict) -> tuple[int, int, int]:
    return tuple(sum(column) for column in zip(*counts.values(), strict=True)) or (0, 0, 0)


def ratios(found: int, guessed: int, correct: int) -> tuple[float, float, float]:
    """Return precision, recall and F1, each 0 where it would divide by 0."""
    precision, recall = correct / guessed if guessed else 0.0, correct / found if found else 0.0
    return precision, recall, 2 * precision * recall / (precision + recall) if correct else 0.0


def test_metrics_of_an_example_worked_by_hand():
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["O", "B-LOC", "I-LOC"]]
    predicted = [["B-PER", "I-PER", "O", "B-PER"], ["O", "B-LOC", "O"]]
    # Spans: three of gold, three predicted, one in both. Words: five of seven.
    assert span_metrics(gold, predicted, "IOB2") == pytest.approx(
        {"precision": 1 / 3, "recall": 1 / 3, "f1": 1 / 3, "accuracy": 5 / 7}
    )
    table = make_span_table(gold, predicted, "IOB2")
    assert list(table) == ["LOC", "PER"]
    assert table["LOC"] == {"precision": 0, "recall": 0, "f1": 0, "gold": 2, "predicted": 1, "correct": 0}
    assert table["PER"] == pytest.approx(
        {"precision": 1 / 2, "recall": 1, "f1": 2 / 3, "gold": 1, "predicted": 2, "correct": 1}
    )


def test_an_inside_that_nothing_begins_counts_but_not_strictly():
    gold, predicted = [["B-PER", "I-PER", "O"]], [["I-PER", "I-PER", "O"]]
    assert span_metrics(gold, predicted, "IOB2")["f1"] == 1.0
    assert span_metrics(gold, predicted, "IOB2", strict=True) == {
        "precision": 0.0,
        "recall": 0.0,
        "f1": 0.0,
        "accuracy": 2 / 3,
    }


def test_no_spans_are_scored_zero_and_the_words_still_count():
    assert span_metrics([["O", "O"]], [["O", "O"]], "IOB2") == {
        "precision": 0.0,
        "recall": 0.0,
        "f1": 0.0,
        "accuracy": 1.0,
    }
    assert make_span_table([["O"]], [["O"]], "IOB2") == {}


@pytest.mark.parametrize("scheme", ["IOB1", "IOB2"])
def test_counts_are_those_of_conlleval(scheme):
    legal = 0
    for gold, predicted in random_cases(1, "BI"):
        counts, (right, words) = conlleval(gold, predicted)
        ours = count_spans(gold, predicted, scheme)
        assert {name: (one.gold, one.predicted, one.correct) for name, one in ours.items()} == counts
        metrics = span_metrics(gold, predicted, scheme)
        expected = (*ratios(*total_of(counts)), right / words)
        assert list(metrics.values()) == pytest.approx(expected, abs=1e-12)
        legal += all(find_fault(tags, scheme) is None for tags in predicted)
    assert 50 < legal < CASES / 2  # both sorts were drawn


def test_counts_of_plain_tags_are_those_of_conlleval_with_raw_tags():
    for gold, predicted in random_cases(2, "NV", ("x", "y")):
        counts, _ = conlleval(gold, predicted, raw=True)
        ours = count_spans(gold, predicted, "plain")
        assert {name: (one.gold, one.predicted, one.correct) for name, one in ours.items()} == counts


def test_plain_tags_without_outside_have_an_f1_that_is_their_accuracy():
    gold, predicted = [["N", "V", "N"], ["D"]], [["N", "N", "N"], ["D"]]
    metrics = span_metrics(gold, predicted, "plain")
    assert metrics["f1"] == metrics["precision"] == metrics["recall"] == metrics["accuracy"] == 0.75


@pytest.mark.first_form
@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("scheme", ["IOB1", "IOB2", "BIOES"])
def test_metrics_are_those_of_seqeval(scheme, strict):
    metrics = pytest.importorskip("seqeval.metrics")
    schemes = pytest.importorskip("seqeval.scheme")
    options = {"mode": "strict", "scheme": getattr(schemes, SEQEVAL_SCHEMES[scheme])} if strict else {}
    with_spans = 0
    for gold, predicted in random_cases(3, PREFIXES[scheme]):
        ours, table = span_metrics(gold, predicted, scheme, strict), make_span_table(gold, predicted, scheme, strict)
        assert ours["accuracy"] == metrics.accuracy_score(gold, predicted)
        if not table:  # seqeval divides by nothing there, and warns
            assert ours["f1"] == 0.0
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = metrics.classification_report(gold, predicted, output_dict=True, zero_division=0, **options)
        assert [ours["precision"], ours["recall"], ours["f1"]] == pytest.approx(
            [report["micro avg"][name] for name in ("precision", "recall", "f1-score")], abs=1e-12
        )
        assert set(table) == {name for name in report if not name.endswith(" avg")}
        for name, row in table.items():
            theirs = report[name]
            assert [row["precision"], row["recall"], row["f1"], row["gold"]] == pytest.approx(
                [theirs["precision"], theirs["recall"], theirs["f1-score"], theirs["support"]], abs=1e-12
            )
        with_spans += 1
    assert with_spans > CASES * 2 / 3


@pytest.mark.parametrize(
    ("gold", "predicted", "found"),
    [
        ([["O"]], [], "1 sentences, 0 predictions"),
        ([["O"], ["O", "O"]], [["O"], ["O"]], "2 words, 1 tags in sentence 2"),
        ([], [], "none"),
        ([["B-PER"]], [["E-PER"]], "'E-PER'"),
    ],
)
def test_metrics_refuse_what_does_not_belong_together(gold, predicted, found):
    with pytest.raises(ValueError) as caught:
        span_metrics(gold, predicted, "IOB2")
    message = str(caught.value)
    assert found in message and "Received: " in message and "\n" not in message

"""Span metrics of predicted tags: precision, recall and F1, overall and per type."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from keras_bert_flow.tasks.core.counts import Counts, make_table
from keras_bert_flow.tasks.tagging.tag_schemes import spans_of

SPAN_METRICS = ("precision", "recall", "f1", "accuracy")


def count_spans(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str, strict: bool = False
) -> dict[str, Counts]:
    """Count the spans of each type.

    Args:
        gold: gold tags of each sentence.
        predicted: predicted tags of each sentence.
        strict: read spans as in seqeval's strict mode, instead of by conlleval's rules, which are those of seqeval's
            default mode; see `spans_of`.
    Returns:
        Type → counts, sorted by name; types that occur in `gold` or `predicted`.
    Raises:
        ValueError: the numbers of sentences or their lengths differ, or a tag is not in the scheme.
    """
    _require_pairs(gold, predicted)
    all_gold, all_predicted, correct = Counter[str](), Counter[str](), Counter[str]()
    for tags, answers in zip(gold, predicted, strict=True):
        expected, found = set(spans_of(tags, scheme, strict)), set(spans_of(answers, scheme, strict))
        all_gold.update(span.type for span in expected)
        all_predicted.update(span.type for span in found)
        correct.update(span.type for span in expected & found)
    types = sorted(all_gold | all_predicted)
    return {type_: Counts(all_gold[type_], all_predicted[type_], correct[type_]) for type_ in types}


def span_metrics(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str, strict: bool = False
) -> dict[str, float]:
    """Compute precision, recall and F1 of spans over all types, and the accuracy of words.

    Returns:
        precision, recall and f1 of spans (micro), 0 to 1; accuracy: the share of words with the correct tag.
    Raises:
        ValueError: as for `count_spans`, or there are no words.
    """
    return measure_sentences(count_sentences(gold, predicted, scheme, strict))


def count_sentences(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str, strict: bool = False
) -> np.ndarray:
    """Return the counts of each sentence for `measure_sentences`; arguments and errors as for `count_spans`.

    Returns:
        int64, (sentences, 5): gold spans, predicted spans, spans in both; words; words with the correct tag.
    """
    _require_pairs(gold, predicted)
    counts = np.zeros((len(gold), 5), dtype=np.int64)
    for row, tags, answers in zip(counts, gold, predicted, strict=True):
        expected, found = set(spans_of(tags, scheme, strict)), set(spans_of(answers, scheme, strict))
        same = sum(map(str.__eq__, tags, answers))
        row[:] = len(expected), len(found), len(expected & found), len(tags), same
    return counts


def measure_sentences(counts: np.ndarray) -> dict[str, float]:
    """Compute the metrics of `span_metrics` from the counts of sentences."""
    *of_spans, words, same = counts.sum(axis=0).tolist()
    total = Counts(*of_spans)
    if not words:
        raise ValueError("Metrics need at least one word. Received: none. Read the table first.")
    return {"precision": total.precision, "recall": total.recall, "f1": total.f1, "accuracy": same / words}


def span_table(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str, strict: bool = False
) -> dict[str, dict[str, float | int]]:
    """Return type → precision, recall, f1, and the counts gold, predicted and correct."""
    counts = count_spans(gold, predicted, scheme, strict)
    return make_table(counts, counts.values())


def _require_pairs(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> None:
    if len(gold) != len(predicted):
        raise ValueError(
            f"Each sentence must have a prediction. Received: {len(gold)} sentences, {len(predicted)} predictions. "
            "Predict every sentence once."
        )
    for number, (tags, answers) in enumerate(zip(gold, predicted, strict=True), 1):
        if len(tags) != len(answers):
            raise ValueError(
                f"Each word must have a predicted tag. Received: {len(tags)} words, {len(answers)} tags in sentence "
                f"{number}. Decode the predictions with the features that the model read."
            )

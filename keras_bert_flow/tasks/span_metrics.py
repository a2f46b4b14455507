"""Measure predicted tags by the spans that they write: precision, recall and F1, over all and for each type."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from keras_bert_flow.tasks.tag_schemes import spans_of

SPAN_METRICS = ("precision", "recall", "f1", "accuracy")


@dataclass(frozen=True)
class SpanCounts:
    """Spans of the tables, spans predicted, and those in both with the same first word, last word and type."""

    gold: int
    predicted: int
    correct: int

    @property
    def precision(self) -> float:
        """Return the share of what was predicted that is right; 0.0 where nothing was."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Return the share of what there is that was found; 0.0 where there is nothing."""
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """Return the harmonic mean of precision and recall; 0.0 where both are."""
        return 2 * self.correct / (self.gold + self.predicted) if self.correct else 0.0


def count_spans(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str, strict: bool = False
) -> dict[str, SpanCounts]:
    """Count the spans of each type.

    Args:
        gold: tags of each sentence, as the table has them.
        predicted: tags of each sentence, as a model has them.
        strict: how spans are read, see `spans_of`: by conlleval's rules, which are those of seqeval's default mode, or
            as in seqeval's strict mode.
    Returns:
        Type → counts, by name; types that occur in `gold` or `predicted`.
    Raises:
        ValueError: sentences or their lengths differ, or a tag is not one of the scheme.
    """
    _require_pairs(gold, predicted)
    all_gold, all_predicted, correct = Counter(), Counter(), Counter()
    for tags, answers in zip(gold, predicted, strict=True):
        expected, found = set(spans_of(tags, scheme, strict)), set(spans_of(answers, scheme, strict))
        all_gold.update(span.type for span in expected)
        all_predicted.update(span.type for span in found)
        correct.update(span.type for span in expected & found)
    types = sorted(all_gold | all_predicted)
    return {type_: SpanCounts(all_gold[type_], all_predicted[type_], correct[type_]) for type_ in types}


def span_metrics(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str, strict: bool = False
) -> dict[str, float]:
    """Score predicted tags over all types together.

    Returns:
        precision, recall and f1 of spans (micro), 0 to 1; accuracy: the share of words with the right tag.
    Raises:
        ValueError: as `count_spans`; or there is no word.
    """
    counts = count_spans(gold, predicted, scheme, strict).values()
    total = SpanCounts(*(sum(getattr(one, name) for one in counts) for name in ("gold", "predicted", "correct")))
    words = sum(map(len, gold))
    if not words:
        raise ValueError("Metrics need at least one word. Received: none. Read the table first.")
    same = sum(tag == answer for pair in zip(gold, predicted, strict=True) for tag, answer in zip(*pair, strict=True))
    return {"precision": total.precision, "recall": total.recall, "f1": total.f1, "accuracy": same / words}


def span_table(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str, strict: bool = False
) -> dict[str, dict[str, float | int]]:
    """Score each type: type → precision, recall, f1, and the counts gold, predicted and correct."""
    return {
        type_: {
            "precision": counts.precision,
            "recall": counts.recall,
            "f1": counts.f1,
            "gold": counts.gold,
            "predicted": counts.predicted,
            "correct": counts.correct,
        }
        for type_, counts in count_spans(gold, predicted, scheme, strict).items()
    }


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

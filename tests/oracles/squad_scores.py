"""Score answers by the rules of SQuAD's official scripts, word by word and in percent, to compare with."""

from itertools import groupby

PUNCTUATION = r"""!"#$%&'()*+,-./:;<=>?@[\]^_`{|}~"""


def answer_words(text):
    """Lower-case, delete punctuation, drop articles that stand alone among letters and digits, split at spaces."""
    kept = [c for c in text.lower() if c not in PUNCTUATION]
    runs = ["".join(run) for _, run in groupby(kept, key=str.isalnum)]
    return "".join(" " if run in ("a", "an", "the") else run for run in runs).split()


def f1_of(gold, answer, both_empty):
    gold, answer = answer_words(gold), answer_words(answer)
    if not gold and not answer:
        return both_empty
    left, same = list(gold), 0
    for word in answer:
        if word in left:
            left.remove(word)
            same += 1
    if same == 0:
        return 0.0
    precision, recall = same / len(answer), same / len(gold)
    return 2 * precision * recall / (precision + recall)


def official_1(golds, answers):
    """evaluate-v1.1.py: the divisor counts every question, also those that nobody answered."""
    exact = f1 = 0.0
    for question, texts in golds.items():
        if question in answers:
            exact += any(answer_words(text) == answer_words(answers[question]) for text in texts)
            f1 += max(f1_of(text, answers[question], 0.0) for text in texts)
    return {"exact": 100 * exact / len(golds), "f1": 100 * f1 / len(golds)}


def official_2(golds, answers, scores=None, threshold=1.0):
    """evaluate-v2.0.py, with `scores` as its --na-prob-file; a question has an answer if its list is not empty."""
    raw = {"exact": {}, "f1": {}}
    for question, texts in golds.items():
        texts = [text for text in texts if answer_words(text)] or [""]
        answer = answers[question]
        raw["exact"][question] = max(float(answer_words(text) == answer_words(answer)) for text in texts)
        raw["f1"][question] = max(f1_of(text, answer, 1.0) for text in texts)
    result = {}
    for name, values in raw.items():
        final = dict(values)
        for question in golds:
            if scores and scores[question] > threshold:
                final[question] = 1.0 if not golds[question] else 0.0
        groups = {"": golds, "has_answer_": [q for q in golds if golds[q]]}
        groups["no_answer_"] = [q for q in golds if not golds[q]]
        for part, questions in groups.items():
            if questions:
                result[part + name] = 100 * sum(final[q] for q in questions) / len(questions)
        if scores:
            result[f"best_{name}"], result[f"best_{name}_threshold"] = best_of(golds, answers, values, scores)
    return result


def best_of(golds, answers, values, scores):
    """Try every number of answered questions, in the order of their scores, and keep the first of the best."""
    order = sorted(scores, key=scores.get)
    tries = []
    for count in range(len(order) + 1):
        earned = 0.0
        for place, question in enumerate(order):
            if golds[question]:
                earned += values[question] if place < count else 0
            else:
                earned += 0 if place < count and answers[question] else 1
        tries.append((earned, scores[order[count - 1]] if count else 0.0))
    best = max(earned for earned, _ in tries)
    # Sums in another order differ in their last digits.
    return next((100 * earned / len(golds), threshold) for earned, threshold in tries if earned > best - 1e-9)

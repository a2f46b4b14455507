"""A small case of each kind of task: examples drawn at random, and predictions decoded from what a model might say."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from keras_bert_flow.tasks.core.task import IGNORED, Features, Task
from keras_bert_flow.tasks.core.texts import TextExample
from keras_bert_flow.tasks.formats.squad import Answer, ContextQuestion
from keras_bert_flow.tasks.formats.tagged_words import TaggedWords
from keras_bert_flow.tasks.multiple_choice import ChoiceExample
from keras_bert_flow.tasks.registry import make_task
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer

LETTERS = [*"abcdefghijklmnop"]
TOKENIZER = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS])
# Every kind, with every metric by which runs of it may be compared.
MAIN_METRICS = [
    ("classification", "accuracy"),
    ("classification", "f1"),
    ("classification", "matthews"),
    ("two_classes", "f1_positive"),
    ("regression", "pearson"),
    ("regression", "spearman"),
    ("multi_label", "f1_micro"),
    ("multi_label", "f1_macro"),
    ("multi_label", "exact_match"),
    ("multiple_choice", "accuracy"),
    ("sentence_embedding", "mrr"),
    ("sentence_embedding", "accuracy"),
    ("scored_pairs", "spearman"),
    ("scored_pairs", "pearson"),
    ("token_classification", "precision"),
    ("token_classification", "recall"),
    ("token_classification", "f1"),
    ("token_classification", "accuracy"),
    ("question_answering", "exact"),
    ("question_answering", "f1"),
    ("maybe_no_answer", "exact"),
    ("maybe_no_answer", "f1"),
]
CASES = [
    "classification",
    "regression",
    "multi_label",
    "multiple_choice",
    "sentence_embedding",
    "token_classification",
    "question_answering",
]
# Cases that are another way of a kind, which its fields choose.
WAYS = {
    "two_classes": ("classification", {}),
    "maybe_no_answer": ("question_answering", {}),
    "scored_pairs": ("sentence_embedding", {"objective": "cosine"}),
}


@dataclass(frozen=True)
class Case:
    task: Task
    training: list
    dev: list

    def answer(self, skill: float, seed: int = 1) -> list[dict[str, Any]]:
        """Decode noise to which the right answer is added, so many times as loud as the noise."""
        features = self.task.encode(TOKENIZER, self.dev, 64)
        outputs = _speak(self.task, features, skill, np.random.default_rng(seed))
        return self.task.decode(outputs, features, self.dev)


def make_case(name: str, count: int = 40, seed: int = 1, **fields: Any) -> Case:
    """Draw examples of a kind of task, as many for training as for dev."""
    kind, chosen = WAYS.get(name, (name, {}))
    rng = np.random.default_rng(seed)
    training, dev = ([DRAW[name](rng, number) for number in range(count)] for _ in range(2))
    return Case(make_task(kind, **chosen, **fields).learn(training), training, dev)


def pick(case: Case, predictions: list, chosen: np.ndarray) -> tuple[list, list]:
    """Take examples and their predictions; those taken twice become two, each question with an id of its own."""
    examples, answers = [case.dev[place] for place in chosen], [predictions[place] for place in chosen]
    if case.task.kind != "question_answering":
        return examples, answers
    examples = [replace(example, id=f"{number}") for number, example in enumerate(examples)]
    return examples, [{**answer, "id": f"{number}"} for number, answer in enumerate(answers)]


def _draw_text(rng: np.random.Generator) -> str:
    return " ".join(rng.choice(LETTERS, size=rng.integers(2, 9)))


def _draw_classes(*labels: str):
    return lambda rng, number: TextExample(_draw_text(rng), None, str(rng.choice(labels)), f"t.tsv, row {number}")


def _draw_number(rng: np.random.Generator, number: int) -> TextExample:
    return TextExample(_draw_text(rng), _draw_text(rng), float(rng.integers(0, 11)) / 2)


def _draw_partners(rng: np.random.Generator, number: int) -> TextExample:
    own = f"{LETTERS[number % 16]} {LETTERS[number // 16]}"  # no text occurs twice
    return TextExample(f"{_draw_text(rng)} {own} a", f"{_draw_text(rng)} {own} b", True)


def _draw_alike(rng: np.random.Generator, number: int) -> TextExample:
    return TextExample(_draw_text(rng), _draw_text(rng), float(rng.integers(0, 11)) / 10)


def _draw_set(rng: np.random.Generator, number: int) -> TextExample:
    return TextExample(_draw_text(rng), None, tuple(name for name in ("x", "y", "z") if rng.random() < 0.4))


def _draw_choice(rng: np.random.Generator, number: int) -> ChoiceExample:
    choices = tuple(_draw_text(rng) for _ in range(3))
    return ChoiceExample(_draw_text(rng), _draw_text(rng), choices, int(rng.integers(3)))


def _draw_tags(rng: np.random.Generator, number: int) -> TaggedWords:
    words = _draw_text(rng).split()
    tags = tuple(str(tag) for tag in rng.choice(["O", "O", "B-PER", "B-LOC"], size=len(words)))
    return TaggedWords(tuple(words), tags)


def _draw_question(rng: np.random.Generator, number: int, may_lack: bool = False) -> ContextQuestion:
    context = " ".join(rng.permutation(LETTERS)[:10])
    if may_lack and rng.random() < 0.4:
        return ContextQuestion(f"q{number}", _draw_text(rng), context, (), True)
    first = int(rng.integers(8))
    last = int(rng.integers(first, min(first + 3, 10)))
    return ContextQuestion(
        f"q{number}", _draw_text(rng), context, (Answer(context[2 * first : 2 * last + 1], 2 * first),)
    )


DRAW = {
    "classification": _draw_classes("blue", "green", "red"),
    "two_classes": _draw_classes("no", "yes"),
    "regression": _draw_number,
    "multi_label": _draw_set,
    "multiple_choice": _draw_choice,
    "sentence_embedding": _draw_partners,
    "scored_pairs": _draw_alike,
    "token_classification": _draw_tags,
    "question_answering": _draw_question,
    "maybe_no_answer": lambda rng, number: _draw_question(rng, number, may_lack=True),
}


def _speak(task: Task, features: Features, skill: float, rng: np.random.Generator) -> dict[str, Any]:
    if task.kind == "question_answering":
        return {
            name: [
                rng.normal(size=length) + skill * np.eye(length)[place]
                for length, place in zip(features.lengths, places, strict=True)
            ]
            for name, places in features.labels.items()
        }
    labels = features.labels["logits"]
    if task.kind == "sentence_embedding":
        return {"logits": _embed(labels, skill, rng)}
    if task.kind == "token_classification":
        width = len(task.labels)
        eye = np.vstack([np.eye(width), np.zeros(width)])  # the last row is for IGNORED
        assert IGNORED == -1
        return {"logits": [rng.normal(size=(len(row), width)) + skill * eye[row] for row in labels]}
    if task.kind == "regression":
        return {"logits": (rng.normal(size=len(labels)) + skill * labels.astype(float)) / max(skill, 1)}
    if task.kind == "multi_label":
        return {"logits": rng.normal(size=labels.shape) + skill * (2 * labels - 1)}
    width = len(task.labels) or features.sequences_per_row
    return {"logits": rng.normal(size=(len(labels), width)) + skill * np.eye(width)[labels]}


def _embed(labels: np.ndarray, skill: float, rng: np.random.Generator) -> np.ndarray:
    """Return vectors of pairs that are near each other, or whose cosine is their score."""
    if labels.ndim == 2:
        shared = rng.normal(size=(len(labels), 1, 4))
        return (rng.normal(size=(len(labels), 2, 4)) + skill * shared) / max(skill, 1)
    angles = np.arccos((rng.uniform(-1, 1, size=len(labels)) + skill * labels.astype(float)) / (1 + skill))
    turned = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    return np.stack([np.broadcast_to([1.0, 0.0], turned.shape), turned], axis=1)

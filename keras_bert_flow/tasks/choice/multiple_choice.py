"""Multiple choice: choose how a text continues, or which answer to a question about it is correct."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, final

import numpy as np

from keras_bert_flow.tasks.choice.choices import ChoiceColumns, ChoiceExample, count_choices, read_choices
from keras_bert_flow.tasks.choice.settings import MultipleChoiceSettings
from keras_bert_flow.tasks.core.answers import probabilities_of
from keras_bert_flow.tasks.core.checks import check_main_metric, refuse_labels
from keras_bert_flow.tasks.core.features import Features, count_joined, join_texts
from keras_bert_flow.tasks.core.metrics import classification_metrics, has_collapsed, majority_class, mean_measure
from keras_bert_flow.tasks.core.task import Measure, Prediction, Task
from keras_bert_flow.tasks.core.texts import are_labelled, labels_of, take_texts
from keras_bert_flow.tasks.formats.rows import abridge
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer


@final
@dataclass(frozen=True)
class MultipleChoice(MultipleChoiceSettings, Task):
    """Multiple choice between texts, in the layout of SWAG (the defaults) or, with the fields of `RACE`, of RACE.

    Each choice is a sequence of its own, [CLS] context [SEP] question and choice [SEP]. The model computes one logit
    per sequence and returns {"logits": (rows, choices)}. A prediction is {"label": index of the choice, from 0, "text",
    "probability", "probabilities"}, the last in the order of the choices. `score` returns the accuracy.

    Attributes:
        context: column of the text that is read first.
        question: column of the text before each choice, joined by a space; None if there is none.
        choices: one column per choice; or one field of a JSON object that holds a list of them.
        label: column of the correct choice, a number from 0 or a letter from A.
        header: the first line of a .tsv or .csv names the columns.
        main_metric: accuracy.
        labels: always empty: the choices differ between examples.
    Source: Devlin et al. 2019, section 4.4, for the sequences.
    """

    baseline: ClassVar[str] = "commonest place"
    headings: ClassVar[Mapping[str, str]] = {"accuracy": "accuracy %"}

    main_metric: str = "accuracy"
    labels: tuple[str, ...] = ()

    def __post_init__(self):
        check_main_metric(self.main_metric, ("accuracy",))
        refuse_labels(self.labels, self.kind)
        columns = [name for name in (self.context, self.question, *self.choices, self.label) if name is not None]
        if not self.choices or len(set(columns)) < len(columns):
            raise ValueError(
                "Context, question, choices and label must be different columns, and `choices` at least one. "
                f"Received: {abridge(columns)}. Name each one once."
            )

    def read(self, path: str | Path, max_examples: int | None = None, has_labels: bool = True) -> list[ChoiceExample]:
        label = self.label if has_labels else None
        columns = ChoiceColumns(self.context, self.question, self.choices, label)
        return read_choices(path, columns, self.header, max_examples)

    def pose(self, item: Any) -> ChoiceExample:
        names = ("context", *(("question",) if self.question is not None else ()))
        if not isinstance(item, Mapping) or set(item) != {*names, "choices"} or isinstance(item["choices"], str):
            raise ValueError(
                f"An item for this task must be an object of {', '.join(names)} and choices, a list. "
                f"Received: {abridge([repr(item)])}. Give such an object."
            )
        texts = dict(zip(names, take_texts([item[name] for name in names], names), strict=True))
        choices = take_texts(list(item["choices"]), [f"choice {n}" for n, _ in enumerate(item["choices"])])
        return ChoiceExample(texts["context"], texts.get("question"), tuple(choices))

    def learn(self, examples: Sequence[ChoiceExample]) -> "MultipleChoice":
        labels_of(examples)
        return self

    def encode(self, tokenizer: Tokenizer, examples: Sequence[ChoiceExample], sequence_length: int) -> Features:
        joined, full_lengths = [], []
        for example in examples:
            context = tokenizer.encode(example.context)
            for choice in example.choices:
                second = choice if example.question is None else f"{example.question} {choice}"
                pair = (context, tokenizer.encode(second))
                joined.append(join_texts(tokenizer, *pair, sequence_length))
                full_lengths.append(count_joined(tokenizer, *pair))
        labels = [example.label for example in examples]
        return Features(
            token_ids=[token_ids for token_ids, _ in joined],
            first_lengths=np.array([first_length for _, first_length in joined], dtype=np.int32),
            examples=np.arange(len(examples), dtype=np.int32),
            labels={"logits": np.array(labels, dtype=np.int32)} if are_labelled(examples) else {},
            sequences_per_row=count_choices(examples),
            sequence_length=sequence_length,
            full_lengths=np.array(full_lengths, dtype=np.int64),
        )

    def decode(
        self, outputs: Mapping[str, Any], features: Features, examples: Sequence[ChoiceExample]
    ) -> list[Prediction]:
        rows = probabilities_of(outputs, features, features.sequences_per_row)
        return [_predict(example, row, row.argmax()) for example, row in zip(examples, rows, strict=True)]

    def score(self, examples: Sequence[ChoiceExample], predictions: Sequence[Prediction]) -> dict[str, float]:
        answers = np.array([prediction["label"] for prediction in predictions])
        metrics = classification_metrics(np.array(labels_of(examples)), answers, count_choices(examples))
        return {"accuracy": metrics["accuracy"]}

    def guess(self, training: Sequence[ChoiceExample], examples: Sequence[ChoiceExample]) -> list[Prediction]:
        """Predict the choice index that is most often correct in training, the first of ties."""
        labels = np.array(labels_of(training))
        shares = np.bincount(labels, minlength=count_choices(training)) / len(labels)
        return [_predict(example, shares, majority_class(labels)) for example in examples]

    def tabulate(
        self, examples: Sequence[ChoiceExample], predictions: Sequence[Prediction]
    ) -> dict[str, dict[str, float | int]]:
        return {}

    def show(self, example: ChoiceExample) -> dict[str, Any]:
        question = {} if example.question is None else {"text_pair": example.question}
        gold = None if example.label is None else example.choices[example.label]
        return {"text": example.context, **question, "gold": gold}

    def list_texts(self, example: ChoiceExample) -> list[str]:
        return [example.context, *([] if example.question is None else [example.question]), *example.choices]

    def review(self, example: ChoiceExample, prediction: Prediction) -> dict[str, Any] | None:
        if example.label == prediction["label"]:
            return None
        return self.show(example) | {"predicted": prediction["text"], "probability": prediction["probability"]}

    def is_collapsed(self, examples: Sequence[ChoiceExample], predictions: Sequence[Prediction]) -> bool:
        """Return whether the same choice index is always predicted though the labels differ."""
        return has_collapsed(labels_of(examples), [prediction["label"] for prediction in predictions])

    def make_measure(self, examples: Sequence[ChoiceExample], predictions: Sequence[Prediction]) -> Measure:
        pairs = zip(labels_of(examples), predictions, strict=True)
        return mean_measure([label == prediction["label"] for label, prediction in pairs])


# Fields of a `MultipleChoice` for RACE as published: a folder of .txt files, each an article with questions.
RACE = {"context": "article", "question": "questions", "choices": ("options",), "label": "answers"}


def _predict(example: ChoiceExample, probabilities: np.ndarray, chosen: int) -> Prediction:
    return {
        "label": int(chosen),
        "text": example.choices[chosen],
        "probability": float(probabilities[chosen]),
        "probabilities": probabilities.tolist(),
    }

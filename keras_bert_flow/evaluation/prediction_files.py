"""Score a file of predictions in the official format of its task, without a model and without Keras."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.json_documents import read_json
from keras_bert_flow.records.verification import verify
from keras_bert_flow.tasks.answering.squad import gold_answers
from keras_bert_flow.tasks.answering.squad_metrics import score_squad_1, score_squad_2
from keras_bert_flow.tasks.core.task import Prediction, Task
from keras_bert_flow.tasks.formats.rows import abridge, read_objects, read_rows
from keras_bert_flow.tasks.registry import make_task
from keras_bert_flow.tasks.tagging.conll import LAST, read_tagged_words

JSON_LINES = ".jsonl"


def score_predictions(config: PipelineConfig, path: str | Path) -> dict[str, float]:
    """Score predictions on the task's dev file.

    The file is `.jsonl`, a prediction a line as `kbf predict` writes them; else, by the kind of the task: SQuAD's JSON
    object of ids and answers (1.1, or 2.0 where a question has no answer); CoNLL columns, the word first and the
    predicted tag last; for classes and numbers GLUE's table of index and prediction. Labels are learnt from the
    training file where it is there, else from the dev file.

    Raises:
        FileNotFoundError: the predictions or the dev file are missing.
        ValueError: the predictions are not of these examples; the message names the file.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"Predictions must be in a file. Received: {path}, which is none. Check the path.")
    verify(path, config.task.train, config.task.dev)
    task = make_task(**config.task.arguments)
    examples = task.read(config.task.dev)
    task = task.learn(task.read(config.task.train) if Path(config.task.train).is_file() else examples)
    if task.kind == "question_answering":
        return _score_answers(task, examples, path)
    if str(path).endswith(JSON_LINES):
        predictions = [fields for _, fields in read_objects(path)]
    elif task.kind in READERS:
        predictions = READERS[task.kind](path, examples)
    else:
        raise ValueError(f"Predictions of {task.kind} must be in a .jsonl file. Received: {path}. Use `kbf predict`.")
    if len(predictions) != len(examples):
        raise ValueError(
            f"{path}: must hold a prediction for each example of {config.task.dev}. Received: {len(predictions)} for "
            f"{len(examples)}. Predict that file."
        )
    try:
        return task.score(examples, predictions)
    except KeyError as error:
        raise ValueError(f"{path}: a prediction lacks {error} for {task.kind}. Predict with such a task.") from None
    except (TypeError, AttributeError) as error:  # a field that JSON gave another type
        raise ValueError(
            f"{path}: a prediction is not one of {task.kind} ({error}). Predict with such a task."
        ) from None


def _score_answers(task: Task, examples: Sequence[Any], path: str | Path) -> dict[str, float]:
    """Score answers; without `null_difference`, which only our lines have, no best threshold is looked for."""
    golds = gold_answers(examples)
    if str(path).endswith(JSON_LINES):
        predictions = [fields for _, fields in read_objects(path)]
        if all({"id", "answer", "null_difference", "n_best"} <= set(fields) for fields in predictions):
            if missing := golds.keys() - {fields["id"] for fields in predictions}:
                raise ValueError(f"{path}: an answer is missing for {abridge(sorted(missing))}. Predict them all.")
            return task.score(examples, predictions)
        answers = {str(fields.get("id")): fields.get("answer") for fields in predictions}
    else:
        answers = _read_answers(path)
    if wrong := [question for question, answer in answers.items() if not isinstance(answer, str)]:
        raise ValueError(f"{path}: each answer must be a text. Received: another for {abridge(map(str, wrong))}.")
    return score_squad_1(golds, answers) if all(golds.values()) else score_squad_2(golds, answers)


def _read_answers(path: str | Path) -> dict[str, Any]:
    try:
        answers = read_json(path)
    except ValueError as error:
        raise ValueError(f"{path}: must be JSON. Received: {error}. Write it again.") from None
    if not isinstance(answers, dict):
        raise ValueError(f"{path}: must be an object of ids and answers. Received: {type(answers).__name__}.")
    return answers


def _read_tags(path: str | Path, examples: Sequence[Any]) -> list[Prediction]:
    found = read_tagged_words(path, 0, LAST, True, None)
    for gold, predicted in zip(examples, found, strict=False):
        if tuple(gold.words) != tuple(predicted.words):
            raise ValueError(
                f"{predicted.place(0)}: must have the words of {gold.place(0)}. Received: {abridge(predicted.words)}. "
                "Predict that file."
            )
    return [{"words": list(each.words), "tags": list(each.tags)} for each in found]


def _read_table(path: str | Path, field: str, convert: Callable[[str], Any]) -> list[Prediction]:
    predictions = []
    for number, (row, (index, value)) in enumerate(read_rows(path, ["index", "prediction"], True)):
        if str(index) != str(number):
            raise ValueError(f"{path}, row {row}: `index` must count from 0. Received: {index!r}. Sort the table.")
        try:
            predictions.append({field: convert(value)})
        except ValueError:
            raise ValueError(f"{path}, row {row}: must be a number. Received: {value!r}. Correct it.") from None
    return predictions


READERS: dict[str, Callable[[str | Path, Sequence[Any]], list[Prediction]]] = {
    "token_classification": _read_tags,
    "classification": lambda path, _: _read_table(path, "label", str),
    "regression": lambda path, _: _read_table(path, "score", float),
}

"""Score an answer file as the official scripts of SQuAD do."""

from collections import Counter
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from keras_bert_flow.json_documents import parse_json
from keras_bert_flow.tasks.answering.squad import ContextQuestion, gold_answers
from keras_bert_flow.tasks.answering.squad_metrics import score_squad_1, score_squad_2
from keras_bert_flow.tasks.core.task import Task
from keras_bert_flow.tasks.formats.bounded_reading import read_whole
from keras_bert_flow.tasks.formats.rows import JSON_LINES, abridge, read_objects


def score_answer_file(task: Task, path: str | Path, examples: Sequence[ContextQuestion]) -> dict[str, float]:
    """Score an answer file; best thresholds need `null_difference`, which only our own JSON lines have."""
    golds = gold_answers(examples)
    if str(path).endswith(JSON_LINES):
        predictions = [fields for _, fields in read_objects(path)]
        _check_ids(path, golds, [str(fields.get("id")) for fields in predictions])
        if all({"id", "answer", "null_difference", "n_best"} <= set(fields) for fields in predictions):
            return task.score(examples, predictions)
        answers: dict[str, Any] = {str(fields.get("id")): fields.get("answer") for fields in predictions}
    else:
        answers = _read_answers(path)
        _check_ids(path, golds, list(answers))
    if wrong := [question for question, answer in answers.items() if not isinstance(answer, str)]:
        raise ValueError(
            f"{path}: each answer must be a text. Received: another for {abridge(map(str, wrong))}. "
            "Write each as a string."
        )
    return score_squad_1(golds, answers) if all(golds.values()) else score_squad_2(golds, answers)


def _check_ids(path: str | Path, golds: Collection[str], given: Sequence[str]) -> None:
    """Refuse a file that is not of these questions: the official scripts score a missing answer as 0, with a remark."""
    counts, known = Counter(given), list(golds)
    faults = {
        "none for": [question for question in known if question not in counts],
        "answers to questions that are not in the file:": [question for question in counts if question not in golds],
        "more than one for": [question for question, count in counts.items() if count > 1],
    }
    for fault, questions in faults.items():
        if questions:
            raise ValueError(
                f"{path}: there must be one answer to each of the {len(known):,} questions. Received: {fault} "
                f"{abridge(questions, limit=3)}. Predict the file that they are from, whole."
            )


def _read_answers(path: str | Path) -> dict[str, Any]:
    try:
        answers = parse_json(read_whole(str(path)).decode("utf-8-sig"))
    except ValueError as error:
        raise ValueError(f"{path}: must be JSON. Received: {error}. Write it again.") from None
    if not isinstance(answers, dict):
        raise ValueError(f"{path}: must be an object of ids and answers. Received: {type(answers).__name__}.")
    return answers

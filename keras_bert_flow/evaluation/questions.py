"""Read and encode evaluation examples before the model is loaded, and write or score prediction files."""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.conversion.directory import check_masked_lm
from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.prediction.load import find_task, has_unnamed_outputs, name_outputs
from keras_bert_flow.results.publishing import verify
from keras_bert_flow.tasks.core.task import Features, Prediction, Task, with_inputs
from keras_bert_flow.tasks.core.texts import describe_unreachable
from keras_bert_flow.tasks.formats.rows import JSON_LINES, abridge
from keras_bert_flow.tasks.formats.tables import sort_names
from keras_bert_flow.tasks.minimal_pairs import EncodedPairs, encode_pairs, read_minimal_pairs
from keras_bert_flow.tasks.registry import make_task
from keras_bert_flow.training.finetuning.task_data import fetch_table, fetch_tables

DEV = "dev"

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Questions:
    """The examples of a file, and their features."""

    examples: Sequence[Any]
    features: Features


def read_questions(config: PipelineConfig, model: str | Path) -> dict[str, Questions]:
    """Read the dev file and further ones as configured, and encode them as the model does.

    What no model can predict in them is counted in a warning.

    Returns:
        Name of each file → its questions, `dev` first.
    Raises:
        FileNotFoundError: a file, or one of the model, is missing.
        ValueError: a file or the model is unusable, a label is not one of the model's, or the model is of another kind
            of task.
    """
    as_configured = make_task(**config.task.arguments)
    task, sequence_length = find_task(model)
    require_kind(as_configured, task, model)
    task = name_outputs(model, task, as_configured.labels)
    tables = {name: fetch_table(path) for name, path in ({DEV: config.task.dev} | config.task.extra_dev).items()}
    verify(model, *tables.values())
    tokenizer, found = read_tokenizer(Path(model)), {}
    for name, path in tables.items():
        examples = as_configured.read(path)
        _require_names(model, task, path, examples)
        found[name] = Questions(examples, task.encode(tokenizer, examples, sequence_length))
        if remark := describe_unreachable(name, task.count_unreachable(tokenizer, examples, found[name].features)):
            _logger.warning("%s", remark)
    return found


def _require_names(model: str | Path, task: Task, path: str, examples: Sequence[Any]) -> None:
    """Raise ValueError if a table has labels and the outputs of the model have no names."""
    labels = sort_names(name for example in examples for name in task.names_of(example))
    if not has_unnamed_outputs(model, task) or set(labels) <= set(task.labels):
        return
    named = labels if len(labels) == len(task.labels) else (*labels, "...")
    raise ValueError(
        f"The outputs of a model must have names to be compared with labels. Received: {model}, whose outputs are "
        f"{task.labels[0]} to {task.labels[-1]}, and {path} with {abridge(labels)}. Name them in the order of the "
        f"outputs, such as --set 'task.labels={json.dumps(named, ensure_ascii=False)}'."
    )


def read_pairs(model: str | Path, path: str | Path, limit: int | None = None) -> EncodedPairs:
    """Read minimal pairs and encode them as a masked LM does.

    Args:
        limit: as for `read_minimal_pairs`.
    Raises:
        FileNotFoundError: the file, or one of the model, is missing.
        ValueError: a file is unusable, the model has no masked-LM head, or a sentence does not fit it.
    """
    verify(model, path)
    settings = check_masked_lm(model)
    return encode_pairs(read_tokenizer(Path(model)), read_minimal_pairs(path, limit), settings["max_positions"])


def require_kind(task: Task, found: Task, model: str | Path) -> None:
    """Raise ValueError unless a model is of a task's kind."""
    if task.kind != found.kind:
        raise ValueError(
            f"A model must be asked about the kind of task that it was fine-tuned on. Received: {model} of "
            f"{found.kind}, task.kind={task.kind}. Set task.kind, or choose another model."
        )


# Write the predictions of a run as JSON lines, and in the official format if there is one.


def write_predictions(
    folder: Path, name: str, task: Task, examples: Sequence[Any], predictions: Sequence[Prediction]
) -> None:
    """Write `<name>.jsonl`, one prediction per line with its texts, in the order of the examples, and official files.

    For questions these are `<name>.answers.json`, for the official scripts of SQuAD, and if there may be no answer
    `<name>.no_answer.json`, for their `--na-prob-file`; for tags `<name>.conll`, with the columns word, tag and
    predicted tag, for conlleval, unless a word contains a blank.
    """
    lines = (json.dumps(prediction) + "\n" for prediction in with_inputs(examples, predictions))
    with open(folder / f"{name}{JSON_LINES}", "w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)
    task.write_beside(folder / name, examples, predictions)


# Score a prediction file in the official format of its task, without a model and without Keras.


def score_predictions(config: PipelineConfig, path: str | Path) -> dict[str, float]:
    """Score predictions on the task's dev file.

    The file is `.jsonl`, one prediction per line with its texts, as written by `kbf predict --input`, in any order; or,
    by the kind of the task: SQuAD's JSON object of ids and answers (1.1, or 2.0 if a question has no answer); CoNLL
    columns, the word first and the predicted tag last; for classes and numbers GLUE's table of index and prediction.
    Labels are learnt from the training file if it exists, else from the dev file.

    Raises:
        FileNotFoundError: the predictions or the dev file are missing.
        ValueError: the predictions are not of these examples; the message names the file.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"Predictions must be in a file. Received: {path}, which is not one. Check the path.")
    config = fetch_tables(config)
    verify(path, config.task.train, config.task.dev)
    task = make_task(**config.task.arguments)
    examples = task.read(config.task.dev)
    task = task.learn(task.read(config.task.train) if Path(config.task.train).is_file() else examples)
    return task.score_file(path, examples)

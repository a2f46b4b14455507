"""Read a task's files and show them to a model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from keras_bert_flow.config import PipelineConfig
from keras_bert_flow.tasks.features import Features
from keras_bert_flow.tasks.make import make_task
from keras_bert_flow.tasks.task import Task
from keras_bert_flow.text.tokenizer import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES


@dataclass(frozen=True)
class TaskFiles:
    """A task that has learnt its labels, and the examples of its files; `extra_dev` by the names in the settings."""

    task: Task
    training: Sequence[Any]
    dev: Sequence[Any]
    extra_dev: dict[str, Sequence[Any]]


@dataclass(frozen=True)
class TaskData:
    """A task that has learnt its labels, and what it is trained and measured on."""

    task: Task
    train: Features
    dev_examples: Sequence[Any]
    dev: Features


def read_task_files(config: PipelineConfig) -> TaskFiles:
    """Read every file of a task.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is not one of such a task; the message names file and row.
    """
    task = make_task(**config.task.arguments)
    training = task.read(config.task.train, config.finetuning.max_train_examples)
    extra_dev = {name: task.read(path) for name, path in config.task.extra_dev.items()}
    return TaskFiles(task.learn(training), training, task.read(config.task.dev), extra_dev)


def check_task_files(config: PipelineConfig) -> TaskFiles:
    """Read and check every file of a task before there is a vocabulary.

    Those to be measured on are encoded with a vocabulary without words: that is how their labels are checked against
    those of the training file.

    Raises:
        FileNotFoundError, ValueError: as of `read_task_files`, or a label is unknown.
    """
    files = read_task_files(config)
    tokenizer = WordPieceTokenizer(SPECIAL_PIECES)
    for examples in (files.dev, *files.extra_dev.values()):
        files.task.encode(tokenizer, examples, config.finetuning.sequence_length)
    return files


def read_task_data(config: PipelineConfig, tokenizer: WordPieceTokenizer) -> TaskData:
    """Read and encode the files; errors as of `check_task_files`, also those of further dev files."""
    files, length = read_task_files(config), config.finetuning.sequence_length
    for examples in files.extra_dev.values():
        files.task.encode(tokenizer, examples, length)  # what is wrong with them is said now, not after the training
    train, dev = (files.task.encode(tokenizer, examples, length) for examples in (files.training, files.dev))
    return TaskData(files.task, train, files.dev, dev)


def check_task_length(sequence_length: int, max_positions: int) -> None:
    """Raise ValueError unless a model has positions for every token of an example."""
    if sequence_length > max_positions:
        raise ValueError(
            f"Examples must fit the model's {max_positions} positions. Received: finetuning.sequence_length="
            f"{sequence_length}. Lower it, or choose another model."
        )

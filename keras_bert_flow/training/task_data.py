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
class TaskData:
    """A task that has learnt its labels, and what it is trained and measured on."""

    task: Task
    train: Features
    dev_examples: Sequence[Any]
    dev: Features


def read_examples(config: PipelineConfig) -> tuple[Task, Sequence[Any], Sequence[Any]]:
    """Return the task with the labels of its training file, and the examples of the two files.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is not one of such a task; the message names file and row.
    """
    task = make_task(**config.task.arguments)
    training = task.read(config.task.train, config.finetuning.max_train_examples)
    return task.learn(training), training, task.read(config.task.dev)


def read_extra_dev(config: PipelineConfig, task: Task) -> dict[str, Sequence[Any]]:
    """Return the examples of each further dev file by its name; errors as of `read_examples`."""
    return {name: task.read(path) for name, path in config.task.extra_dev.items()}


def check_task_files(config: PipelineConfig) -> int:
    """Check every file of a task before there is a vocabulary, and return the number of training examples.

    The files are read, and those to be measured on are encoded with a vocabulary without words: that is how their
    labels are checked against those of the training file.

    Raises:
        FileNotFoundError, ValueError: as of `read_examples`, also those of further dev files.
    """
    task, training, dev = read_examples(config)
    tokenizer = WordPieceTokenizer(SPECIAL_PIECES)
    for examples in (dev, *read_extra_dev(config, task).values()):
        task.encode(tokenizer, examples, config.finetuning.sequence_length)
    return len(training)


def read_task_data(config: PipelineConfig, tokenizer: WordPieceTokenizer) -> TaskData:
    """Read and encode both files; errors as of `read_examples`, also those of further dev files."""
    task, training, dev = read_examples(config)
    length = config.finetuning.sequence_length
    for examples in read_extra_dev(config, task).values():
        task.encode(tokenizer, examples, length)  # what is wrong with them is said now, not after the training
    return TaskData(task, task.encode(tokenizer, training, length), dev, task.encode(tokenizer, dev, length))

"""Fetch, read, check and encode the data files of a task, and find the words of its labels."""

import logging
import os
import statistics
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.files.documents import read_json_object
from keras_bert_flow.files.inputs import NOTHING_HELD, InputStates, hold
from keras_bert_flow.files.paths import find_address
from keras_bert_flow.results.publishing import verify
from keras_bert_flow.results.stages.tasks import describe_augmentation, drop_copies
from keras_bert_flow.stores.fetching import fetch
from keras_bert_flow.tasks.core.metrics import describe_shares
from keras_bert_flow.tasks.core.task import Features, Task
from keras_bert_flow.tasks.core.texts import CutTexts, Unreachable, count_repeats, describe_cut, describe_unreachable
from keras_bert_flow.tasks.formats.rows import NAMED_FIELDS
from keras_bert_flow.tasks.formats.tables import describe_heading, describe_lookalikes, describe_rare
from keras_bert_flow.tasks.registry import make_task
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer, count_lost, describe_lost
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES

# Label words (verbalizers): the tokens of words that represent the classes of a task.


def check_label_words(words: Mapping[str, Sequence[str]] | None, labels: Sequence[str]) -> None:
    """Raise ValueError unless there are label words for exactly the classes of the task."""
    if words is not None and set(words) != set(labels):
        raise ValueError(
            "`finetuning.label_words` must name the classes of the task. "
            f"Received: {', '.join(words)}, of {', '.join(labels)}. Give each class its words."
        )


def find_label_words(
    words: Mapping[str, Sequence[str]] | None, labels: Sequence[str], tokenizer: Tokenizer
) -> list[list[int]]:
    """Return the token ids of the label words of each class, in the order of the classes; empty without label words.

    A word that is not a single token is skipped; see `describe_left_out`.

    Raises:
        ValueError: as for `check_label_words`, or no word of a class is a single token.
    """
    check_label_words(words, labels)
    if words is None:
        return []
    found = [_find_whole(words[label], tokenizer) for label in labels]
    for label, ids in zip(labels, found, strict=True):
        if not ids:
            raise ValueError(
                "`finetuning.label_words` must have a word for each class that the vocabulary has whole. "
                f"Received: {', '.join(words[label])} for {label!r}. Choose commoner ones."
            )
    return found


def describe_left_out(words: Mapping[str, Sequence[str]] | None, tokenizer: Tokenizer) -> str | None:
    """Return a one-line message about the words that `find_label_words` skips; None if it uses all."""
    left_out = [word for each in (words or {}).values() for word in each if not _find_whole([word], tokenizer)]
    if not left_out:
        return None
    return f"`finetuning.label_words`: {', '.join(left_out)}: not whole in the vocabulary, so not used."


def _find_whole(words: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    encoded = [tokenizer.encode_word(word) for word in words]
    return [int(ids[0]) for ids in encoded if len(ids) == 1 and ids[0] != tokenizer.unk_id]


RARE = 1e-3  # probability below which the order of a table is taken not to be random
LEAST_ROWS = 10  # 2 ** -10 of random rows are all above the median: about `RARE`
UNREACHABLE = "unreachable.json"  # next to the runs of a fine-tuning, if there are any unreachable labels

DevFile = tuple[str | Path, Sequence[Any]]

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TaskFiles:
    """A task with its labels, and the examples of its files.

    Attributes:
        extra_dev: has the names in the settings.
        inputs: states of the files from before they were read.
        remarks: lines about the tables: what was guessed, dev rows that are training rows, labels that look alike.
    """

    task: Task
    training: Sequence[Any]
    dev: Sequence[Any]
    extra_dev: dict[str, Sequence[Any]]
    inputs: InputStates = NOTHING_HELD
    remarks: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskData:
    """A task with its labels, and its encoded training and dev data.

    Attributes:
        unreachable: `train`, `dev` or `extra_dev.<name>` → result of `Task.count_unreachable`, if not empty.
        texts: the same names → counters of the texts that were cut (`CutTexts`) and of lost characters
            (`text.tokenizers.tokenizer.LOST`).
        guess_score: main metric on the dev table of the majority baseline, which predicts what is commonest in the
            training table. None: unknown.
        word_score: the same for the TF-IDF baseline. None: unknown, or the kind of task has no such baseline.
        inputs: states of the files, and of what else they were encoded with, from before they were read.
        remarks: as for `TaskFiles`.
    """

    task: Task
    train: Features
    dev_examples: Sequence[Any]
    dev: Features
    unreachable: Mapping[str, Unreachable] = field(default_factory=dict)
    texts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    guess_score: float | None = None
    word_score: float | None = None
    inputs: InputStates = NOTHING_HELD
    remarks: tuple[str, ...] = ()


def read_task_files(config: PipelineConfig) -> TaskFiles:
    """Read every file of a task.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file does not fit the task; the message names file and row.
    """
    task = make_task(**config.task.arguments)
    inputs = hold(config.task.train, config.task.dev, *config.task.extra_dev.values())
    verify(config.task.train, config.task.dev, *config.task.extra_dev.values())
    training, labelled = read_training(config, task)
    extra_dev = {name: task.read(path) for name, path in config.task.extra_dev.items()}
    check_label_counts(config, training)
    learnt = task.learn(labelled)
    check_label_words(config.finetuning.label_words, learnt.labels)
    dev = task.read(config.task.dev)
    found = {"dev": (config.task.dev, dev)} | {n: (path, extra_dev[n]) for n, path in config.task.extra_dev.items()}
    given = {name for name, value in config.task.arguments.items() if value is not None}
    remarks = list_remarks(learnt, given, config.task.train, training, found)
    return TaskFiles(learnt, training, dev, extra_dev, inputs, tuple(remarks))


def read_training(config: PipelineConfig, task: Task) -> tuple[Sequence[Any], Sequence[Any]]:
    """Return the training examples, at most `finetuning.max_train_examples`, and those that the labels are learnt from.

    The labels of a random sample are those of the whole table: it may lack one that the dev table has.
    """
    settings = config.finetuning
    if settings.train_examples == "first":
        examples = task.read(config.task.train, settings.max_train_examples)
        return examples, examples
    examples = task.read(config.task.train)
    most = min(len(examples), settings.max_train_examples or len(examples))
    rows = np.random.default_rng(config.seed).choice(len(examples), most, replace=False)
    return [examples[row] for row in np.sort(rows)], examples


def list_remarks(
    task: Task, given: Collection[str], train: str | Path, training: Sequence[Any], dev_files: Mapping[str, DevFile]
) -> Iterator[str]:
    """Yield lines about the tables of a task, for logs, plans and reports; see `TaskFiles`.

    Args:
        task: as learnt from the training examples.
        given: the fields of the task that were given rather than learnt.
        train: the training file.
        dev_files: `dev` and the names in `task.extra_dev` → file and examples.
    """
    if remark := describe_augmentation(train):
        yield remark
    yield from task.describe_guesses(given)
    counts = Counter(chain.from_iterable(map(task.names_of, training)))
    has_header = getattr(task, "header", True) or str(train).removesuffix(".gz").endswith(NAMED_FIELDS)
    remarks = (describe_lookalikes(counts), describe_heading(counts, has_header), describe_rare(counts))
    for found in filter(None, remarks):
        yield f"The training file has {found}"
    for name, (path, examples) in dev_files.items():
        if os.path.samefile(path, train):
            yield f"{name} is the training file itself: its scores are those of rows that were trained on."
        elif remark := count_repeats(training, examples).describe(name):
            yield remark
        if remark := compare_classes(task, name, training, examples):
            yield remark


def compare_classes(task: Task, name: str, training: Sequence[Any], examples: Sequence[Any]) -> str:
    """Return a sentence on classes whose shares in the file `name` are not those of the training file, or ""."""
    return describe_shares(name, *([*chain.from_iterable(map(task.names_of, part))] for part in (training, examples)))


def check_task_files(config: PipelineConfig) -> TaskFiles:
    """Read and check every file of a task before there is a vocabulary.

    The dev files are encoded with a vocabulary without words, to check their labels against those of the training file.

    Raises:
        FileNotFoundError, ValueError: as for `read_task_files`, or a label is unknown.
    """
    files = read_task_files(config)
    tokenizer = WordPieceTokenizer(SPECIAL_PIECES)
    for examples in (files.dev, *files.extra_dev.values()):
        files.task.encode(tokenizer, examples, config.finetuning.sequence_length)
    for remark in files.remarks:
        _logger.warning("%s", remark)
    return files


def read_task_data(config: PipelineConfig, tokenizer: Tokenizer) -> TaskData:
    """Read and encode all files of a task; errors as for `check_task_files`.

    Labels that no model can predict, texts that are cut, characters that the tokenizer loses, and `label_words` that
    are not single tokens, are logged.
    """
    files, length = read_task_files(config), config.finetuning.sequence_length
    find_label_words(config.finetuning.label_words, files.task.labels, tokenizer)  # raises for invalid ones
    for remark in files.remarks:
        _logger.warning("%s", remark)
    if left_out := describe_left_out(config.finetuning.label_words, tokenizer):
        _logger.warning("%s", left_out)
    examples = {"train": files.training, "dev": files.dev}
    # Extra dev files are encoded so that errors in them are reported now, not after training.
    examples |= {f"extra_dev.{name}": found for name, found in files.extra_dev.items()}
    encoded, unreachable, texts = {}, {}, {}
    for name, found in examples.items():
        features = files.task.encode(tokenizer, found, length)
        if counts := files.task.count_unreachable(tokenizer, found, features):
            unreachable[name] = counts
            _logger.warning("%s", describe_unreachable(name, counts))
        encoded[name] = features
        texts[name] = count_texts(files.task, tokenizer, found, features)
        for line in describe_texts(name, texts[name]):
            _logger.warning("%s", line)
    known = drop_copies(config.task.train, files.training)
    guessed = files.task.score(files.dev, files.task.guess(known, files.dev))[files.task.main_metric]
    return TaskData(
        files.task,
        encoded["train"],
        files.dev,
        encoded["dev"],
        unreachable,
        texts,
        guessed,
        inputs=files.inputs,
        remarks=files.remarks,
    )


def count_texts(task: Task, tokenizer: Tokenizer, examples: Sequence[Any], features: Features) -> dict[str, int]:
    """Count the texts of a file that were cut, and the characters that the tokenizer loses."""
    cut, lost = CutTexts(), Counter[str]()
    cut.add(features)
    for example in examples:
        for text in task.list_texts(example):
            lost.update(count_lost(tokenizer, text))
    return cut.counters | dict(lost)


def describe_texts(name: str, counters: Mapping[str, int]) -> list[str]:
    """Return lines on the texts of a file that were cut, and on characters that the tokenizer loses, if there are any.

    Args:
        name: of the file, `train`, `dev` or `extra_dev.<name>`.
        counters: of `count_texts`.
    """
    lines = [describe_cut(counters), *describe_lost(counters, "the texts")]
    return [f"{name}: {line}" for line in lines if line]


def read_unreachable(folder: Path) -> dict[str, Unreachable]:
    """Read `unreachable.json` in an output folder of `finetune`; empty if there is none."""
    path = folder / UNREACHABLE
    return read_json_object(path) if path.is_file() else {}


def check_label_counts(config: PipelineConfig, examples: Sequence[Any]) -> None:
    """Raise ValueError unless the table has more rows than each number of `label_counts`, in no order of labels."""
    counts = config.finetuning.label_counts or ()
    largest = max((count for count in counts if count != "all"), default=0)
    if largest >= len(examples):
        raise ValueError(
            f"`label_counts` must be below the {len(examples):,} training rows; `all` stands for these. Received: "
            f"{largest:,}. Leave it out."
        )
    for count in counts:
        if count != "all" and (fault := _find_order(examples, count)):
            raise ValueError(
                f"`label_counts` takes the first rows, so the training table must be in no order of its labels. "
                f"Received: {fault}. Shuffle its rows, or take more."
            )


def _find_order(examples: Sequence[Any], count: int) -> str:
    """Return how the labels of the first `count` examples show that the table is sorted by label; "" if they do not."""
    labels: list[Any] = [example.gold for example in examples if isinstance(example.gold, str | int | float)]
    if len(labels) < len(examples) or isinstance(labels[0], bool):
        return ""
    first, everything = labels[:count], Counter(labels)
    if isinstance(labels[0], float):
        middle = statistics.median(labels)
        is_sorted = count >= LEAST_ROWS and (max(first) < middle or min(first) > middle)
        side = "below" if max(first) < middle else "above"
        return f"numbers that are all {side} the median of the table in the first {count:,} rows" if is_sorted else ""
    if len(everything) > 1 and len(set(first)) == 1 and count > 1:
        return f"only {first[0]!r} in the first {count:,} rows"
    # A label that a random row has with probability p is missing among `count` ones with (1 - p) ** count.
    missing = [name for name in everything if name not in first]
    likely = [name for name in missing if (1 - everything[name] / len(labels)) ** count < RARE / len(everything)]
    return f"no {likely[0]!r} in the first {count:,} rows, of {everything[likely[0]]:,} in the table" if likely else ""


# Fetch the tables of a task from remote storage.


def fetch_tables(config: PipelineConfig) -> PipelineConfig:
    """Return a configuration with local paths for its tables, minimal pairs, teacher and augmentation.

    Remote ones are fetched through the cache; local paths are unchanged. Keys are digests of the bytes, so a table
    and a remote copy of it are the same input.

    Raises:
        FileNotFoundError, OSError, ValueError: as for `stores.fetching.fetch`.
    """
    task, evaluation = config.task, config.evaluation
    tables: dict[str, Any] = {"train": fetch_table(task.train), "dev": fetch_table(task.dev)}
    tables["extra_dev"] = {name: fetch_table(path) for name, path in task.extra_dev.items()}
    pairs = evaluation.minimal_pairs and fetch_table(evaluation.minimal_pairs)
    teacher = {"teacher": config.finetuning.teacher and fetch_table(config.finetuning.teacher)}
    augmentation = config.augmentation
    if augmentation is not None:
        paths = {name: getattr(augmentation, name) for name in ("model", "stop_words")}
        fetched = {name: path and fetch_table(path) for name, path in paths.items()}
        config = config.model_copy(update={"augmentation": augmentation.model_copy(update=fetched)})
    return config.model_copy(
        update={
            "finetuning": config.finetuning.model_copy(update=teacher),
            "task": task.model_copy(update=tables),
            "evaluation": evaluation.model_copy(update={"minimal_pairs": pairs}),
        }
    )


def fetch_table(path: str) -> str:
    """Return the local path of a table, fetched if it is remote; errors as for `fetch_tables`."""
    return str(fetch(path)) if find_address(path) else path

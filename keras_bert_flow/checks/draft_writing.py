"""Write what `kbf init` drafts: a configuration with a comment on each guessed setting, and the parts of a table."""

import csv
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from keras_bert_flow.checks.draft_budget import (
    BYTES_PER_TOKEN,
    FIXED_MINUTES,
    LEAST_TOKENS,
    MOST_PASSES,
    PATIENCE_EPOCHS,
    PRETRAINING_SHARE,
    Budget,
    CorpusLook,
)
from keras_bert_flow.checks.draft_student import FORMS, Student, read_wish
from keras_bert_flow.checks.draft_table import DraftedTask
from keras_bert_flow.config.finetuning import POOLED
from keras_bert_flow.config.loading import make_config
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.console.terminal import escape_controls
from keras_bert_flow.files.paths import name_argument
from keras_bert_flow.results.artifacts import write_atomically
from keras_bert_flow.tasks.core.texts import identify
from keras_bert_flow.tasks.formats.parquet_rows import take_rows
from keras_bert_flow.tasks.formats.rows import JSON_LINES, TABLES, read_lines, read_whole, read_whole_rows
from keras_bert_flow.text.corpus.inputs import PARQUET
from keras_bert_flow.text.tokenizers.tokenizer import describe_lost, lost_share

WIDTH = 100
KINDS = "another kind of task: `kbf configs list`, tasks/"


@dataclass(frozen=True)
class Draft:
    """Everything that a configuration is written from.

    Attributes:
        shares: a sentence on classes whose shares differ between training and dev table, if there are any.
        student: what fits `wish`, of `--small`; None if nothing was asked for.
    """

    name: str
    patterns: Sequence[str]
    train: str
    dev: str
    minutes: float
    backend: str
    look: CorpusLook
    task: DraftedTask
    examples: int
    budget: Budget
    tests: tuple[str, ...] = ()
    shares: str = ""
    student: Student | None = None
    wish: str = ""


def write_draft(draft: Draft, path: str) -> str:
    """Return a configuration as YAML, validated by reading it back.

    Args:
        path: the intended file name, for messages.
    Raises:
        ValueError: the settings contradict each other.
    """
    lines = [*_head(draft, path), *_corpus(draft), *_records(draft), *_pretraining(draft), *_distillation(draft)]
    text = "\n".join([*lines, *_task(draft), *_finetuning(draft)]) + "\n"
    make_config(PipelineConfig, yaml.safe_load(text), path)
    return text


def describe_draft(draft: Draft) -> list[str]:
    """Return what was found and how it was interpreted, one line each."""
    look, task = draft.look, draft.task
    lines = [
        f"Text: {_describe_text(look)}",
        *([f"  {line}"] if (line := _describe_long_words(look)) else []),
        *(["  cased: true (uncased text would lose vowel signs, tones or the like)"] if look.has_letter_marks else []),
        f"Task: {task.kind}, {draft.examples:,} examples, {task.reasons['kind']}.",
    ]
    for name, value in task.settings.items():
        lines.append(f"  {name}: {value}" + (f" ({task.reasons[name]})" if name in task.reasons else ""))
    lines += [f"  {remark}" for remark in task.remarks]
    budget = draft.budget
    lines.append(
        f"Budget of {draft.minutes:g} minutes: a {budget.size} model of {budget.parameters / 1e6:.1f} million "
        f"parameters, {budget.steps:,} steps, {budget.tokens / 1e6:.1f} million tokens."
    )
    lines += [f"  {line}" for line in describe_shortage(draft)]
    if draft.student is not None:
        lines.append(describe_student(draft.student, draft.wish, budget))
    return [escape_controls(line) for line in lines]


def describe_student(student: Student, wish: str, budget: Budget) -> str:
    """Return one line on the student that was chosen, and what it is expected to cost."""
    form = FORMS[read_wish(wish).form]
    costs = f"{student.parameters / 1e6:.2f} million parameters, {form} of about {student.megabytes:.1f} MB"
    if student.milliseconds is not None:
        costs += f", {student.milliseconds:.2g} ms for a text of {student.text_tokens} tokens on one thread here"
    if student.is_teacher:
        return f"--small {wish}: the model itself fits, so nothing is distilled: {costs}."
    return (
        f"--small {wish}: a student of {student}, {costs}; distilled for at most {budget.pretraining_minutes:g} "
        f"minutes, {student.steps:,} steps."
    )


def describe_shortage(draft: Draft) -> list[str]:
    """Return what the time is too short for, and what would be enough; empty if it is not."""
    budget, lines = draft.budget, []
    if budget.tokens < LEAST_TOKENS:
        share = PRETRAINING_SHARE / (1 if draft.student is None or draft.student.is_teacher else 2)
        run_minutes = budget.pretraining_minutes / share  # but for `FIXED_MINUTES`
        enough_minutes = FIXED_MINUTES + run_minutes * LEAST_TOKENS / max(1, budget.tokens)
        passes = draft.look.total_bytes * MOST_PASSES / BYTES_PER_TOKEN
        enough = (
            f"--minutes {enough_minutes:.0f} would be enough"
            if passes >= LEAST_TOKENS
            else f"so little text gives no more ({draft.look.total_bytes / 1e6:.1f} MB)"
        )
        lines = [
            f"Pre-training on {budget.tokens / 1e6:.1f} million tokens teaches next to nothing, unlike on "
            f"{LEAST_TOKENS / 1e6:.1f} million: {enough}.",
            "A published checkpoint of this language helps more than minutes of pre-training: initial_model: "
            "hf://ORGANISATION/NAME",
        ]
    if budget.max_train_examples is not None and budget.enough_for_rows is not None:
        lines.append(
            f"Fine-tuning reads {budget.max_train_examples:,} of {draft.examples:,} examples "
            f"{budget.epochs} times at most, and so learns less than there is to learn: --minutes "
            f"{math.ceil(budget.enough_for_rows)} would be enough for all of them."
        )
    return lines


def _head(draft: Draft, path: str) -> list[str]:
    file = _plain(shlex.quote(name_argument(path)))
    return [
        *_comment(f"{draft.name}: drafted by `kbf init` for about {draft.minutes:g} minutes on this processor."),
        f"# Command: kbf run {file} --plan, which runs nothing, then kbf run {file}",
        "# All settings and what they mean: keras_bert_flow/config/; --set changes one for a run.",
        f"name: {_value(draft.name)}",
        f"backend: {draft.backend}",
        f"minutes: {draft.minutes:g}  # of the whole run; leave out the three `minutes` to take all steps",
        *(line for remark in describe_shortage(draft) for line in _comment(remark)),
    ]


def _corpus(draft: Draft) -> list[str]:
    look = draft.look
    other = "sentences" if look.lines == "paragraphs" else "paragraphs"
    lines = [
        "corpus:",
        *_comment(_describe_text(look), "  "),
        f"  input: {_value(list(draft.patterns))}",
        f"  lines: {look.lines}  # {look.line_words:.1f} words a line in the sample; `{other}` if that is not so",
    ]
    if look.text_field != "text":
        lines.append(f"  text_field: {_value(look.text_field)}  # the field with the longest values")
    case = ["  cased: false  # case and accents are dropped; `true` where they carry meaning, as for names in German"]
    if look.has_letter_marks:
        share = f"{100 * lost_share(look.counts.lost, 'stripped_characters'):.1f} %"
        reason = f"{share} of the characters have a vowel sign, a tone or another mark that uncased text would lose"
        case = [*_comment(f"cased: {reason}", "  "), "  cased: true"]
    return [
        *lines,
        "vocabulary:",
        f"  size: {draft.budget.vocabulary_size}  # pieces; for so much text, and with room for its characters",
        *case,
        *(
            [*_comment(f"long_words: without this, {line}", "  "), "  long_words: characters"]
            if (line := _describe_long_words(look))
            else ()
        ),
    ]


def _describe_long_words(look: CorpusLook) -> str:
    """Return a sentence on words that no vocabulary can encode, if there are many."""
    lost = {name: count for name, count in look.counts.lost.items() if name != "stripped_characters"}
    return " ".join(describe_lost(lost, "the sample"))


def _records(draft: Draft) -> list[str]:
    length = draft.budget.sequence_length
    held_out = 0.03 if draft.look.documents >= 200 else 0.2
    return [
        "records:",
        "  objective: mlm  # masked tokens alone; mlm_nsp also has pairs of sentences, as BERT",
        f"  sequence_length: {length}",
        f"  max_predictions: {round(0.15 * length)}",
        "  duplication: 1  # masks are drawn anew for each pass",
        f"  held_out_fraction: {held_out}  # of about {draft.look.documents:,.0f} documents",
        "model:",
        f"  size: {draft.budget.size}  # tiny, mini, small, medium, base or large: more is better with more time",
        f"  max_positions: {draft.budget.max_positions}",
        "  dropout_rate: 0.0  # in a short training nothing is learnt by heart",
        "  attention_dropout_rate: 0.0",
    ]


def _pretraining(draft: Draft) -> list[str]:
    steps = draft.budget.steps
    return [
        "pretraining:",
        "  masking: dynamic",
        "  batch_size: 32",
        f"  total_steps: {steps}  # {draft.budget.tokens:,} tokens, if this machine is quiet",
        f"  minutes: {draft.budget.pretraining_minutes:g}  # at most; a slower machine takes fewer steps",
        f"  warmup_steps: {draft.budget.warmup_steps}",
        "  # These three leave the plateau of masked-LM training early; see docs/recipes.md.",
        "  optimizer: muon",
        "  token_embeddings: co_occurrence",
        "  output_bias: unigram",
        "  learning_rate: 0.001",
        f"  log_every_steps: {max(1, min(50, steps // 10))}",
        f"  evaluate_every_steps: {max(1, steps // 4)}",
        "  evaluate_instances: 640",
        f"  checkpoint_every_steps: {max(1, steps // 4)}",
    ]


def _distillation(draft: Draft) -> list[str]:
    student = draft.student
    if student is None or student.is_teacher:
        return []
    lines = [
        *_comment(describe_student(student, draft.wish, draft.budget)),
        *_comment("It is fine-tuned in place of its teacher. pretraining.minutes is the time of each of the two."),
        "distillation:",
        f"  student: {{{', '.join(f'{name}: {value}' for name, value in student.model.items())}}}",
    ]
    if student.is_narrow:
        lines += [
            "  start: random  # of another width than its teacher",
            "  hidden_state_weight: 0  # which compares states of one width; the next two compare those of all layers",
            "  attention_score_weight: 1.0",
            "  layer_state_weight: 1.0",
        ]
    return [
        *lines,
        "  batch_size: 32",
        f"  total_steps: {student.steps}",
        f"  warmup_steps: {max(1, min(student.steps // 10, 100))}",
        "  learning_rate: 0.001",
    ]


def _task(draft: Draft) -> list[str]:
    task = draft.task
    lines = [
        "task:",
        f"  name: {_value(draft.name)}",
        *_comment(f"{task.reasons['kind']}; {KINDS}", "  "),
        f"  kind: {task.kind}",
        f"  train: {_value(draft.train)}  # {draft.examples:,} examples",
        f"  dev: {_value(draft.dev)}",
        *(f"  extra_dev: {{test: {_value(test)}}}  # nothing is chosen on it" for test in draft.tests),
    ]
    for name, value in task.settings.items():
        if name in task.reasons:
            lines += _comment(f"{name}: {task.reasons[name]}", "  ")
        lines.append(f"  {name}: {_value(value)}")
    return lines + [line for remark in task.remarks for line in _comment(remark, "  ")]


def _finetuning(draft: Draft) -> list[str]:
    budget, lines = draft.budget, ["finetuning:"]
    if draft.task.kind in POOLED:
        lines += [
            "  pooling: cls  # as in transformers, which reads the published model; mean may score a little more",
            "  head_start: probe",
        ]
    if draft.task.kind == "classification" and draft.shares:
        lines += _comment(f"calibrate: {draft.shares} A bias for each class, fitted there, corrects for it.", "  ")
        lines.append("  calibrate: bias_corrected  # true if texts to come are mixed as the training table is")
    elif draft.task.kind == "classification":
        lines.append("  calibrate: true  # probabilities that agree with the shares of right answers on dev")
    lines += [
        "  batch_size: 32",
        "  # Both starts are trained to their end: until dev gains nothing, for at most as many epochs.",
        f"  epochs: {budget.epochs}",
        f"  patience_epochs: {PATIENCE_EPOCHS}",
        "  publish: best",
        f"  random_max_epochs: {budget.epochs}",
        f"  random_patience_epochs: {PATIENCE_EPOCHS}",
        f"  minutes: {budget.finetuning_minutes:g}  # at most; a slower machine takes fewer steps",
        f"  sequence_length: {budget.text_length}  # tokens; 19 of 20 texts are not cut, if that is at most 256",
        "  learning_rate: 0.0005  # of so small a model; 0.00003 to 0.00005 for base",
        f"  seeds: {list(budget.seeds)}  # of which the report has mean and deviation",
    ]
    if budget.max_train_examples is not None:
        lines.append(f"  max_train_examples: {budget.max_train_examples}  # of the time there is; leave it out for all")
        lines.append("  train_examples: random  # tables are often in some order")
    return lines


def _describe_text(look: CorpusLook) -> str:
    scripts = ", ".join(f"{name.capitalize()} {100 * share:.0f} %" for name, share in look.scripts if share >= 0.005)
    return (
        f"{look.files:,} file{'s' * (look.files != 1)}, {look.file_bytes / 1e6:,.1f} MB"
        f"{'' if abs(look.total_bytes - look.file_bytes) < 1e4 else f', unpacked {look.total_bytes / 1e6:,.1f} MB'}; "
        f"about {look.documents:,.0f} documents of {look.document_lines:.1f} lines of {look.line_words:.1f} words; "
        f"letters: {scripts or 'none'}."
    )


def _comment(text: str, margin: str = "") -> list[str]:
    """Format a text as one or more comment lines."""
    lines, line = [], f"{margin}#"
    for word in _plain(text).split():
        if len(line) + len(word) + 1 > WIDTH and line.strip() != "#":
            lines.append(line)
            line = f"{margin}#"
        line += f" {word}"
    return [*lines, line]


def _plain(text: str) -> str:
    """Escape line ends and control characters of untrusted text, so that it cannot end a comment and become YAML."""
    return escape_controls(text).encode(errors="backslashreplace").decode()


def _value(value: Any) -> str:
    """Format a value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=float("inf"))
    return text.removesuffix("\n").removesuffix("\n...")


# Split a table into a train, a dev and a test table, so that no text is in two of them.

EVERY = 10  # every tenth text goes to the dev table, and every tenth of a large table to the test table
LEAST_TEXTS, LEAST_FOR_TEST = 20, 500


def name_parts(table: Path, output: Path, examples: Sequence[Any], with_test: bool) -> list[Path]:
    """Return the paths of the parts, next to the configuration: train, dev and, of a large table, test.

    Raises:
        ValueError: the file cannot be split by rows.
    """
    ending = Path(table.name.removesuffix(".gz")).suffix
    if ending not in TABLES:
        raise ValueError(
            f"There must be a file to measure on. Received: {table} alone, which is not divided by rows. Give --dev."
        )
    has_test = with_test and len({*map(identify, examples)}) >= LEAST_FOR_TEST
    names = ("train", "dev", *(["test"] if has_test else []))
    return [output.with_name(f"{output.stem}-{name}{ending}") for name in names]


def divide_rows(table: Path, parts: Sequence[Path], task: Any, examples: Sequence[Any]) -> list[list[int]]:
    """Choose a tenth of the texts for the second part and another tenth for the third, if any; the rest is the first.

    These are every tenth text in the order of their classes, and of the table within a class, so that the parts have
    the same shares of classes whatever the order of the table. Rows with the same texts, apart from case and blanks,
    are in the same part, and a text stays in the first part where that would otherwise lack one of its classes.

    Args:
        task: the task that read the table.
        examples: its rows.
    Returns:
        Indices of the rows of each part, from 0.
    Raises:
        FileExistsError: a part exists already.
        ValueError: the table has too few texts, or too few of each class, or the task cannot learn from the first part.
    """
    for part in parts:
        if part.exists():
            raise FileExistsError(
                f"A part of the table must be a new file. Received: {part}, which exists. Give --dev."
            )
    rows_of: dict[bytes, list[int]] = {}
    for row, example in enumerate(examples):
        rows_of.setdefault(identify(example), []).append(row)
    if len(rows_of) < LEAST_TEXTS:
        raise ValueError(
            f"A table that is to be divided must have at least {LEAST_TEXTS} different texts. Received: {table}, with "
            f"{len(rows_of)} in {len(examples)} rows. Give --dev, or more rows."
        )
    chosen: list[list[int]] = [[] for _ in parts]
    drawn: list[tuple[int, list[int]]] = []
    texts = sorted(rows_of.values(), key=lambda rows: tuple(task.names_of(examples[rows[0]])))
    for text, rows in enumerate(texts, 1):
        place = {0: 1, EVERY // 2: 2}.get(text % EVERY, 0)
        if 0 < place < len(parts):
            drawn.append((place, rows))
        else:
            chosen[0] += rows
    learnt = {name for row in chosen[0] for name in task.names_of(examples[row])}
    for place, rows in drawn:
        names = {name for row in rows for name in task.names_of(examples[row])}
        chosen[place if names <= learnt else 0] += rows
        learnt |= names
    if not all(chosen):
        raise ValueError(
            f"A table that is to be divided must have several texts of most classes. Received: {table}, with "
            f"{len(learnt):,} classes in {len(examples):,} rows, of which nothing is left to measure on if training "
            "has a text of each class. Give --dev, merge rare classes, or look whether another column has the labels."
        )
    task.learn([examples[row] for row in sorted(chosen[0])])
    return [sorted(rows) for rows in chosen]


def write_parts(table: Path, parts: Sequence[Path], header: bool, chosen: Sequence[Sequence[int]]) -> None:
    """Write the rows that `divide_rows` chose for each part."""
    if parts[0].suffix == PARQUET:
        for part, rows in zip(parts, chosen, strict=True):
            write_atomically(part, take_rows(str(table), rows))
        return
    whole: list[str] = []
    if parts[0].suffix == ".csv":  # with new quoting, since a row may span several lines
        writer = csv.writer(SimpleNamespace(write=whole.append), lineterminator="\n")
        writer.writerows(row for _, row in read_whole_rows(table))
    else:
        blanks = None if JSON_LINES in table.suffixes else " "  # a line of one tab is a row of a .tsv
        whole = [f"{line}\n" for _, line in read_lines(table) if line.strip(blanks)]
    first, lines = whole[:header], whole[header:]
    for part, rows in zip(parts, chosen, strict=True):
        write_atomically(part, "".join([*first, *(lines[row] for row in rows)]).encode())


def count_rows(table: Path, header: bool) -> int:
    """Return the number of rows of a table, of questions in SQuAD's .json, or of blank lines in a tagged file."""
    if table.name.removesuffix(".gz").endswith(TABLES):
        return max(0, sum(1 for _ in read_whole_rows(table)) - header)
    if table.name.removesuffix(".gz").endswith(".json"):  # SQuAD's format, with one key `question` per question
        return read_whole(str(table)).count(b'"question"')
    return sum(1 for _, line in read_lines(table) if not line.strip())

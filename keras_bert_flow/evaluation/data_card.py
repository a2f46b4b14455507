"""Data card of a report: task tables with labels and examples, sample records, and record counts."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_bert_flow.data.shown_records import show_examples
from keras_bert_flow.evaluation.page import code, paragraph, table
from keras_bert_flow.evaluation.result_sections import MAX_CLASSES, abridge, write_answer
from keras_bert_flow.tasks.core.task import Task

SHOWN_EXAMPLES, SHOWN_RECORDS = 4, 2
LOOKED_AT = 1000  # examples searched for one of each label
MAX_RECORD = 1200  # characters of a shown record: a long sequence is a page
# Counter → the counter that includes it.
SHARES = {
    "unknown_tokens": "tokens",
    "unknown_characters": "characters",
    "long_word_characters": "characters",
    "stripped_characters": "characters",
    "random_next_that_follows": "random_next",
    "masked_tokens": "instance_tokens",
    "padding_positions": "positions",
}


def make_data_card(task: Task, tables: Mapping[str, Sequence[Any]], records: Path) -> dict[str, Any]:
    """Collect the facts about the data.

    Args:
        task: with its labels.
        tables: name → examples; those shown are from the first.
        records: what the model was pre-trained on.
    Returns:
        In plain JSON values: `tables`, name → number of examples and, if the labels of examples are the task's, the
        count of each; `examples`, as returned by `show` of the task; `records`, as text.
    """
    return {
        "tables": {name: {"examples": len(rows), "labels": _count_labels(task, rows)} for name, rows in tables.items()},
        "examples": _choose_examples(task, next(iter(tables.values()))),
        "records": _show_records(records),
    }


def describe_data(card: Mapping[str, Any], counters: Mapping[str, Any]) -> list[str]:
    """Return the data section of the report; `counters` are those of the records."""
    parts = [_tabulate(card.get("tables", {}))]
    if examples := card.get("examples"):
        rows = [
            [
                " ‖ ".join(abridge(shown[name]) for name in ("text", "text_pair") if shown.get(name)),
                write_answer(shown["gold"]),
            ]
            for shown in examples
        ]
        parts.append(table(["training example", "label"], rows, ["text", "text"]))
    if counters:
        parts.append(table(["pre-training records", "count", "share"], _count_rows(counters)))
    if records := card.get("records"):
        parts += [paragraph("Records as a model sees them:", "note"), code(records)]
    return parts


def _count_labels(task: Task, examples: Iterable[Any]) -> dict[str, int]:
    """Count the labels of examples; empty if a label is not one of the task's, as in tagging or regression."""
    if not task.labels:
        return {}
    golds = [task.show(example)["gold"] for example in examples]
    counts = Counter(label for gold in golds for label in (gold if isinstance(gold, list) else [gold]))
    return {label: counts[label] for label in task.labels} if counts.keys() <= {*task.labels} else {}


def _choose_examples(task: Task, examples: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the first example of each label, or the first examples, in the order of the table."""
    first: dict[str, int] = {}
    for place, example in enumerate(examples[:LOOKED_AT]):
        first.setdefault(repr(task.show(example)["gold"]), place)
        if len(first) >= SHOWN_EXAMPLES:
            break
    places = [*dict.fromkeys([*first.values(), *range(min(SHOWN_EXAMPLES, len(examples)))])]
    return [task.show(examples[place]) for place in sorted(places[:SHOWN_EXAMPLES])]


def _show_records(records: Path) -> str:
    try:
        return "\n\n".join(abridge(block, MAX_RECORD) for block in show_examples(records, SHOWN_RECORDS).split("\n\n"))
    except (OSError, ValueError):  # moved away since the training, or without training records
        return ""


def _tabulate(tables: Mapping[str, Mapping[str, Any]]) -> str:
    counts = table(["table", "examples"], [[name, f"{found['examples']:,}"] for name, found in tables.items()])
    labels = list(dict.fromkeys(label for found in tables.values() for label in found["labels"]))
    if not labels or len(labels) > MAX_CLASSES:
        return counts
    with_labels = {name: found for name, found in tables.items() if found["labels"]}
    header = ["label", *(column for name in with_labels for column in (name, "share"))]
    rows = [
        [label, *(cell for found in with_labels.values() for cell in _write_share(found, label))] for label in labels
    ]
    return f"{counts}\n{table(header, rows)}"


def _write_share(found: Mapping[str, Any], label: str) -> list[str]:
    """Return the count of a label in a table, and its share of the examples, which may have several labels."""
    count = found["labels"].get(label, 0)
    return [f"{count:,}", f"{100 * count / (found['examples'] or 1):.1f} %"]


def _count_rows(counters: Mapping[str, Any], prefix: str = "") -> list[list[str]]:
    rows = []
    for name, value in counters.items():
        label = prefix + str(name).replace("_", " ")
        if isinstance(value, Mapping):
            rows += _count_rows(value, f"{label}: ")
        else:
            whole = counters.get(SHARES[name]) if name in SHARES else None
            share = f"{value / whole:.2%} of {SHARES[name]}".replace("_", " ") if whole else ""
            rows.append([label, f"{value:,}" if isinstance(value, int) else str(value), share])
    return rows

"""The files that the commands of the documentation name, small, at the paths where they look for them."""

import bz2
import gzip
import json
import random
import re
import shutil
from itertools import product
from pathlib import Path

import zstandard

from tests.documented import ROOT

SUBJECTS = ("the film", "a story", "this actor", "the soup", "an old house", "the river", "my friend", "one critic")
VERBS = ("was", "seemed", "became", "remained", "looked")
QUALITIES = ("good", "dull", "fine", "slow", "bright", "sad", "warm", "cold", "long", "short", "clever", "empty")
SEASONS = ("spring", "summer", "autumn", "winter")
MEDIAWIKI = "http://www.mediawiki.org/xml/export-0.11/"
# What makes a run long, in a configuration, on a command line and in Python, and what it is in a test.
SHORTER = (
    (r"\b(warmup_steps(?:: |=))\d+", "1"),
    (r"\b((?:total_steps|(?:log|evaluate|checkpoint)_every_steps): )\d+", "4"),
    (r"((?<![a-z_])(?:total_steps|steps_per_epoch|steps)=|--steps )\d+", "4"),
    (r"\b((?:random_max_)?epochs(?:: |=))\d+", "1"),
    (r"\b(seeds: )\[[^]]*\]", "[1]"),
)


def shorten(text: str) -> str:
    for pattern, number in SHORTER:
        text = re.sub(pattern, rf"\g<1>{number}", text)
    return text


def write_data(folder: Path) -> None:
    """Write texts, tables and configurations below the folder in which the commands are given."""
    rng = random.Random(1)
    documents = [[write_sentence(rng) for _ in range(8)] for _ in range(150)]
    text = "\n\n".join("\n".join(document) for document in documents) + "\n"
    for name in ("text/first.txt", "crawl.txt", "corpus.txt"):
        write(folder / name, text)
    (folder / "more" / "a").mkdir(parents=True)
    lines = "".join(json.dumps({"text": " ".join(document)}) + "\n" for document in documents[:9])
    (folder / "more" / "a" / "lines.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    write(folder / "texts.txt", "\n".join(documents[0]))
    write(folder / "help.txt", "\n".join(documents[1]))
    page = "<page><title>A</title><ns>0</ns><revision><text>{}</text></revision></page>"
    pages = "".join(page.format("\n".join(document)) for document in documents)
    dump = f'<mediawiki xmlns="{MEDIAWIKI}">{pages}</mediawiki>'.encode()
    (folder / "enwiki-latest-pages-articles.xml.bz2").write_bytes(bz2.compress(dump))
    write_tables(folder, documents)
    write_questions(folder)
    shutil.copytree(ROOT / "configs", folder / "configs")
    for config in (folder / "configs").rglob("*.yaml"):
        config.write_text(shorten(config.read_text(encoding="utf-8")), encoding="utf-8")


def write_sentence(rng: random.Random) -> str:
    first, second = rng.sample(SUBJECTS, 2)
    one, two = rng.sample(QUALITIES, 2)
    when = f"in the {rng.choice(SEASONS)} of {rng.randrange(1900, 2030)}"
    return f"{first} {rng.choice(VERBS)} {one} and {two} near {second} {when}."


def write_tables(folder: Path, documents: list[list[str]]) -> None:
    rows = [
        (f"{subject} {verb} {one} and {two}", str(QUALITIES.index(one) % 2))
        for subject, verb, one, two in product(SUBJECTS, VERBS, QUALITIES, QUALITIES[:3])
    ]
    random.Random(2).shuffle(rows)
    named = [(text, ("bad", "good")[int(label)]) for text, label in rows[:200]]
    for name in ("table.tsv", "reviews.tsv", "train.tsv", "dev.tsv"):
        write_table(folder / name, [("text", "label"), *named])
    write_table(folder / "data" / "sst2" / "train.tsv", rows[:1100])
    write_table(folder / "data" / "sst2" / "dev.tsv", rows[1100:1200])
    pairs = [(text, other) for (text, _), (other, _) in zip(rows[:40], rows[40:80], strict=True)]
    write_glue(folder / "data", rows, pairs)
    for part in ("train", "dev"):
        write_table(folder / "data" / "pairs" / f"{part}.tsv", [("text", "text_pair"), *pairs])
    tags = "\n\n".join(f"{first} N B-PER\nwoont V O\nin P O\nUtrecht N B-LOC" for first in ("Jan", "Piet", "Kees"))
    for part in ("train", "testa"):
        write(folder / "data" / "conll2002_ned" / f"{part}.txt", tags + "\n")
    minimal = [
        {"sentence_good": document[0], "sentence_bad": document[1], "UID": "adjunct_island", "field": "syntax"}
        for document in documents[:6]
    ]
    packed = zstandard.compress("".join(json.dumps(pair) + "\n" for pair in minimal).encode())
    (folder / "blimp.jsonl.zst").write_bytes(packed)


def write_glue(data: Path, rows: list[tuple[str, str]], pairs: list[tuple[str, str]]) -> None:
    """Write tables with the columns of GLUE's, with and without labels."""
    labels = {
        "RTE": ("label", ("entailment", "not_entailment"), ("train", "dev"), ("test",)),
        "MNLI": (
            "gold_label",
            ("contradiction", "entailment", "neutral"),
            ("train", "dev_matched", "dev_mismatched"),
            ("test_matched", "test_mismatched", "diagnostic"),
        ),
    }
    header = ("index", "sentence1", "sentence2")
    for task, (column, classes, labelled, bare) in labels.items():
        numbered = [(str(number), *pair) for number, pair in enumerate(pairs)]
        for part in labelled:
            filled = [(*row, classes[number % len(classes)]) for number, row in enumerate(numbered)]
            write_table(data / task / f"{part}.tsv", [(*header, column), *filled])
        for part in bare:
            write_table(data / task / f"{part}.tsv", [header, *numbered])
    for part in ("train", "dev"):
        write_table(data / "CoLA" / f"{part}.tsv", [("gj04", label, "", text) for text, label in rows[:40]])
    write_table(
        data / "CoLA" / "test.tsv",
        [("index", "sentence"), *((str(number), text) for number, (text, _) in enumerate(rows[:9]))],
    )


def write_questions(folder: Path) -> None:
    """Write a file of SQuAD 1.1, for training and for measuring."""
    context = "It was written by Ada in the summer of 1843."
    questions = [
        {"id": f"q{number}", "question": question, "answers": [{"text": answer, "answer_start": context.index(answer)}]}
        for number, (question, answer) in enumerate([("Who wrote it?", "Ada"), ("When was it written?", "1843")] * 8)
    ]
    articles = {"version": "1.1", "data": [{"title": "A", "paragraphs": [{"context": context, "qas": questions}]}]}
    for part in ("train", "dev"):
        write(folder / "data" / "squad" / f"{part}-v1.1.json", json.dumps(articles))


def write_table(path: Path, rows: list[tuple[str, ...]]) -> None:
    write(path, "".join("\t".join(row) + "\n" for row in rows))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")

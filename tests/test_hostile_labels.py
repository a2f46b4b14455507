"""Labels and names with escapes and markup, from the task's table to the terminal, the predictions and the report."""

import csv
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from keras_bert_flow.conversion.model_card import Card, write_card
from keras_bert_flow.conversion.model_directory import save_model_directory
from keras_bert_flow.evaluation.evaluate import PACKAGES
from keras_bert_flow.evaluation.summary import align, remarks_markdown
from keras_bert_flow.models.backbone import BertBackbone
from keras_bert_flow.results.manifest import write_manifest
from tests.console.test_markdown import PARSER, read_table, shown, text_of
from tests.evaluation.test_page import OURS, Elements
from tests.hostile_names import HOSTILE, hidden_in
from tests.oracles.small_bert import TINY
from tests.patience import PATIENCE_SECONDS
from tests.tasks.kinds import LETTERS
from tests.terminals import read_terminal

pytestmark = [pytest.mark.any_backend, pytest.mark.slow]

ROOT = Path(__file__).parents[1]
TITLE = "".join(HOSTILE)
NAME = os.fsdecode(b"\x1b]0;pwned\x07\xc2\x9b\xe9.txt")  # not UTF-8
TRAIN = "train\x1b]0;pwned\x07.csv"
SHOWN_NAME = "\\x1b]0;pwned\\x07\\x9b\\udce9.txt"
# One process for all commands: loading the backend takes most of the time. A line that no label holds goes before each.
CHILD = """
import contextlib, json, sys
from keras_bert_flow.__main__ import main

for arguments, output in json.load(open("commands.json")):
    print("=====", flush=True)
    sys.argv[1:] = arguments
    with contextlib.ExitStack() as stack:
        if output:
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(output, "w", encoding="utf-8"))))
        try:
            main()
        except SystemExit as end:
            print("status", end.code)
print("=====", flush=True)
raise RuntimeError(sys.argv[-1])
"""
# What rich writes to draw its bar.
DRAWING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def write_table(path: Path, rows: list[tuple[str, str]]) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])


def write_inputs(folder: Path) -> None:
    texts = [" ".join(pair) for pair in zip(LETTERS, LETTERS[1:] + LETTERS[:1], strict=True)]
    rows = [(f"{text} {label}", label) for text, label in zip(texts * 9, HOSTILE * 2, strict=False)]
    write_table(folder / TRAIN, [*rows, ("a", f" {HOSTILE[0]}")])
    write_table(folder / "dev.csv", rows)
    write_table(folder / "unknown.csv", [*rows, ("a", "\x1b[2Jnew")])
    files = {"train": TRAIN, "dev": "dev.csv", "extra_dev": {"_x_": "dev.csv"}, "name": TITLE}
    finetuning = {"batch_size": 8, "epochs": 1, "seeds": [1], "sequence_length": 16}
    values = {"name": TITLE, "task": files, "finetuning": finetuning}
    (folder / "task.yaml").write_text(yaml.safe_dump(values))
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]
    (folder / "vocab.txt").write_text("\n".join(pieces) + "\n")
    save_model_directory(
        BertBackbone(vocabulary_size=len(pieces), **TINY, max_positions=16), folder / "base", folder / "vocab.txt"
    )
    for name, stage in (("pretrained", "pretraining"), ("records", "records")):
        (folder / name).mkdir()
        if stage == "pretraining":
            (folder / name / "metrics.json").write_text('{"seconds": 2.0, "steps": 3}')
            (folder / name / "log.jsonl").write_text('{"step": 1, "loss": 2.5}\n')
        write_manifest(folder / name, stage, "0", {}, {}, {"documents": 7, "rejected": {HOSTILE[0]: 1}})


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, list[str]]:
    """Run the commands on a terminal; return their folder, and what the terminal received of each."""
    folder = tmp_path_factory.mktemp("hostile")
    write_inputs(folder)
    model = "out/pretrained/seed-1/model"
    report = ("--finetuned", "out", "--pretrained", "pretrained", "--records", "records", "--config", "task.yaml")
    commands = [
        (("finetune", "--model", "base", "--task", "task.yaml", "--output", "out"), None),
        (("evaluate", "--model", model, "--task", "task.yaml"), None),
        (("evaluate", "--model", model, "--task", "task.yaml", "--set", "task.dev=unknown.csv"), None),
        (("predict", "--model", model, "a b"), None),
        (("predict", "--model", model, "a b"), "redirected.jsonl"),
        (("report", *report, "--output", "report"), None),
        (("configs", "copy", "quickstart", f"copy-{NAME}"), None),
        (("configs", "copy", "quickstart", f"another-{NAME}"), "redirected.txt"),
        (("doctor", "--json", NAME), None),
        (("doctor", NAME), None),
    ]
    (folder / "commands.json").write_text(json.dumps(commands))
    (folder / NAME).write_text("A sentence.\n\nAnother one.\n")
    leader, follower = pty.openpty()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "200"}
    streams = {"stdin": follower, "stdout": follower, "stderr": follower}
    process = subprocess.Popen([sys.executable, "-c", CHILD], cwd=folder, env=environment, **streams)
    os.close(follower)
    shown = read_terminal(leader)
    process.wait(PATIENCE_SECONDS)
    return folder, shown.decode().replace("\r\n", "\n").split("=====\n")[1:]


def test_terminal_receives_no_escapes_of_a_table(run):
    _, screens = run
    for screen in screens:
        assert not hidden_in(DRAWING.sub("", screen), "\n\r"), screen
    finetune, _, unknown, _, _, _, copy, _, _, doctor, uncaught = screens
    assert "train\\x1b]0;pwned\\x07.csv, row" in finetune  # the warning of blanks around a label
    assert "\\x1b[2Jnew" in unknown and "status 2" in unknown
    assert copy == f"copy-{SHOWN_NAME}\n" and SHOWN_NAME in doctor
    assert not any("Traceback" in screen for screen in screens[:-1])
    assert "Traceback" in uncaught and f"RuntimeError: {SHOWN_NAME}" in "".join(uncaught.splitlines()[-1:])


def test_predictions_have_the_labels_on_a_terminal_and_exactly_in_a_file(run):
    folder, screens = run
    redirected = (folder / "redirected.jsonl").read_bytes().decode()
    answer = json.loads(redirected)
    assert json.loads(screens[3]) == answer and set(answer["probabilities"]) == set(HOSTILE)
    assert json.dumps(answer, ensure_ascii=False) + "\n" == redirected


def test_paths_and_json_keep_their_values(run):
    folder, screens = run
    assert (folder / "redirected.txt").read_bytes() == b"another-" + os.fsencode(NAME) + b"\n"
    assert json.loads(screens[8].removesuffix("status 1\n"))["path"] == NAME


def test_report_holds_labels_as_text(run):
    folder, _ = run
    html = (folder / "report/report.html").read_text(encoding="utf-8")
    drawn = re.sub("<svg.*?</svg>", "<svg></svg>", html, flags=re.DOTALL)
    seen = Elements(drawn)
    assert seen.names <= OURS and not hidden_in(html)
    for name in ("\\x1b]0;pwned\\x07", "\\u202eevil\\u2066", "<img src=x onerror=alert(1)>", "[/x]"):
        assert name in seen.text
    assert any(package in seen.text for package in PACKAGES)
    markdown = (folder / "report/report.md").read_text(encoding="utf-8")
    models = json.loads((folder / "report/metrics.json").read_text())["models"]
    sections = markdown.split("\n\n")
    tables = [read_table(section) for section in sections if section.startswith("|")]
    (name,) = (section for section in sections if section.startswith("On "))
    assert len(tables) == 2 and not hidden_in(markdown)
    for table in tables:
        assert len(table) == 1 + len(models) and {len(row) for row in table} == {5}
    assert text_of(PARSER.parse(name)[1]) == "On _x_:"


def test_model_card_holds_what_a_run_says_as_text():
    model = BertBackbone(vocabulary_size=50, **TINY, max_positions=16)
    card = write_card(Card(TITLE, (("Task", [["task", TITLE]]),)), model, model, model.saved_as, "BertModel")
    front, _, body = card.removeprefix("---\n").partition("\n---\n")
    assert yaml.safe_load(front) == {
        "license": "unknown",
        "library_name": "transformers",
        "pipeline_tag": "feature-extraction",
        "tags": ["keras", "keras-bert-flow"],
    }
    opening, heading, *_ = tokens = PARSER.parse(body)
    assert opening.tag == "h1" and text_of(heading) == shown(TITLE)
    inline = [token for token in tokens if token.type == "inline"]
    place = next(place for place, token in enumerate(inline) if token.content == "task")
    assert text_of(inline[place + 1]) == shown(TITLE)


def test_plain_tables_have_a_line_for_each_row():
    assert align([["name", "x"], [HOSTILE[-1], HOSTILE[0]]]).count("\n") == 1
    found = {name: {"answers": {"total": 2, "cut": 1}} for name in ("a", "extra_dev._x_", "c")}
    tokens = PARSER.parse(*remarks_markdown({"unreachable": found}))
    lines = [text_of(token) for token in tokens if token.type == "inline"]
    assert len(lines) == 4 and lines[2].startswith("extra_dev._x_: 1 of 2 answers")

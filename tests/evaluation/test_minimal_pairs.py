"""Accuracy on minimal pairs: ties count one half, each group is counted alone, and the command prints two forms."""

import json
import math
from pathlib import Path

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.cli import app
from keras_bert_flow.console.terminal import as_markdown
from keras_bert_flow.evaluation.minimal_pairs import count_masked_copies, evaluate_minimal_pairs, summarise_pairs
from keras_bert_flow.evaluation.questions import read_pairs
from keras_bert_flow.evaluation.tables import COARSE, describe_minimal_pairs, pairs_rows
from keras_bert_flow.tasks.minimal_pairs import EncodedPairs, MinimalPair
from tests.prediction.models import save_masked_lm

GROUPS = [("x", None, "syntax"), ("x", None, "syntax"), ("y", "t", "syntax"), ("y", "t", None)]
PAIRS = [
    MinimalPair("a", "b", dict(zip(("phenomena", "linguistics_terms", "fields"), groups, strict=True)), "p, row 1")
    for groups in GROUPS
]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return save_masked_lm(tmp_path_factory.mktemp("masked_lm"))


def write(path: Path, *pairs: tuple[str, str, str], **fields) -> Path:
    lines = [{"sentence_good": good, "sentence_bad": bad, "UID": name, **fields} for good, bad, name in pairs]
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def summarise(*scores: tuple[float, float]) -> dict:
    places = np.arange(len(scores))
    encoded = EncodedPairs(PAIRS[: len(scores)], (), good=2 * places, bad=2 * places + 1)
    return summarise_pairs(encoded, np.array(scores).reshape(-1))


def test_ties_count_one_half_and_groups_are_counted_by_themselves():
    found = summarise((-1.0, -2.0), (-3.0, -3.0), (-2.0, -1.0), (-5.0, -6.0))
    x = {"pairs": 2, "accuracy": 0.75, "standard_error": pytest.approx(0.25), "ties": 1}
    y = {"pairs": 2, "accuracy": 0.5, "standard_error": pytest.approx(0.5), "ties": 0}
    assert found["phenomena"] == {"x": x, "y": y} and found["linguistics_terms"] == {"t": y}
    assert found["fields"] == {"syntax": {"pairs": 3, "accuracy": 0.5, "standard_error": found_error(), "ties": 1}}
    assert (found["pairs"], found["accuracy"], found["ties"]) == (4, 0.625, 1)
    assert found["standard_error"] == pytest.approx(math.sqrt((2 * 0.375**2 + 0.125**2 + 0.625**2) / 3 / 4))


def found_error():
    return pytest.approx(math.sqrt((0.5**2 + 0 + 0.5**2) / 2 / 3))


def test_a_single_pair_has_no_standard_error():
    found = summarise((-1.0, -2.0))
    assert (found["accuracy"], found["standard_error"]) == (1.0, None)
    assert "100.0" in pairs_rows(found | {"limit": None})[1]


def test_identical_sentences_are_a_tie_on_any_model(model, tmp_path):
    path = write(tmp_path / "p.jsonl", ("w1 w2", "W1  w2", "x"), ("unheard", "unseen", "x"), ("w3", "w3 w4 w5", "y"))
    advanced = []
    found = evaluate_minimal_pairs(model, path, advance=advanced.append)
    assert found["phenomena"]["x"] == {"pairs": 2, "accuracy": 0.5, "standard_error": 0.0, "ties": 2}
    assert found["ties"] == 2 and found["limit"] is None and found["fields"] == {}
    assert sum(advanced) == count_masked_copies(read_pairs(model, path)) == 2 + 1 + 1 + 3


@pytest.mark.slow
@pytest.mark.any_backend
def test_results_do_not_depend_on_the_batches(model, tmp_path):
    rows = [(f"w{n} w{n + 1}", f"w{n + 1} w{n} of the cat", f"u{n % 3}") for n in range(1, 20)]
    path = write(tmp_path / "p.jsonl", *rows, field="syntax")
    whole = kbf.evaluate_minimal_pairs(model, path)
    assert kbf.evaluate_minimal_pairs(model, path, batch_positions=16) == whole
    few = kbf.evaluate_minimal_pairs(model, path, limit=2)
    assert (few["pairs"], few["limit"], few["fields"]["syntax"]["pairs"]) == (6, 2, 6)


@pytest.mark.any_backend
def test_command_prints_a_table_and_json(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", keras.backend.backend())
    path = write(tmp_path / "p.jsonl", ("w1 w2", "w2 w1", "x"), ("w3", "w3", "x\x1b[2J\u202e"), field="syntax")
    arguments = ["evaluate", "--minimal-pairs", str(path), "--model", str(model), "--limit", "7"]
    app(arguments, standalone_mode=False)
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["minimal", "pairs", "pairs", "accuracy", "%", "standard", "error", "ties"]
    assert [line.split()[0] for line in table[1:]] == ["all", "field", "phenomenon", "phenomenon"]
    assert table[-1].split() == ["phenomenon", r"x\x1b[2J\u202e", "1", "50.0", "1"]
    app([*arguments, "--json"], standalone_mode=False)
    found = json.loads(capsys.readouterr().out)
    assert found == evaluate_minimal_pairs(model, path, 7)
    assert list(found["phenomena"]) == ["x", "x\x1b[2J\u202e"]


def test_names_are_escaped_in_the_report():
    found = summarise((-1.0, -2.0), (-3.0, -3.0), (-2.0, -1.0))
    hostile = "<b>|\n" + "y" * 300
    found["fields"] = {hostile: found["fields"]["syntax"]}
    text, (table, note) = as_markdown(pairs_rows(found, COARSE)), describe_minimal_pairs(found | {"limit": 5})
    assert text.count("\n") == 4 and "&lt;b&gt;\\|\\\\n" in text and len(text.splitlines()[-2]) < 300
    assert "&lt;b&gt;|" in table and "<b>" not in table
    assert "3 pairs" in note and "the first 5 of each phenomenon" in note
    assert describe_minimal_pairs(None) == []

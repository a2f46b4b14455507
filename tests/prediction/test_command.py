"""`kbf predict` as a program among others: pipes, files and flags."""

import json
import os
import select
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_bert_flow.cli.question_commands import check_prediction
from tests.patience import PATIENCE_SECONDS
from tests.prediction.models import save_classifier, save_masked_lm


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_masked_lm(tmp_path_factory.mktemp("masked_lm"))


def start(*arguments, **pipes):
    command = [sys.executable, "-m", "keras_bert_flow", "predict", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **pipes)


def ask(*arguments, **pipes):
    """Return the lines of a command that ends well."""
    process = start(*arguments, **pipes)
    printed, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 0, errors.decode()
    return [json.loads(line) for line in printed.splitlines()]


def read_answer(process) -> list:
    assert select.select([process.stdout], [], [], PATIENCE_SECONDS)[0], "no answer came"
    return json.loads(process.stdout.readline())


@pytest.mark.slow
def test_who_writes_a_line_and_waits_gets_its_answer(folder):
    options = ("--as", "fill_mask", "--top-k", 1)
    with start("--model", folder, *options, stdin=subprocess.PIPE, bufsize=0) as process:
        try:
            for number in range(3):
                process.stdin.write(f"w{number} is [MASK]\n".encode())
                ((fill,),) = read_answer(process)
                assert fill["sequence"].startswith(f"w{number} is ")
            process.stdin.write(b"w3 is [MASK]\nw4\n")
            assert read_answer(process)[0][0]["sequence"].startswith("w3 is ")
            assert process.wait(PATIENCE_SECONDS) == 2
            (line,) = process.stderr.read().decode().splitlines()
            assert line.startswith("kbf: Line 5: A text must hold [MASK]. Received: 'w4'.")
        finally:
            process.kill()


@pytest.mark.slow
def test_texts_that_are_cut_are_said_once(tmp_path):
    model = save_classifier(tmp_path)
    texts = "w1\n" + f"w2 {'cat ' * 200}\n" * 20
    with start("--model", model, stdin=subprocess.PIPE) as process:
        printed, errors = process.communicate(texts.encode(), timeout=PATIENCE_SECONDS)
    assert (process.returncode, len(printed.splitlines())) == (0, 21)
    (line,) = [line for line in errors.decode().splitlines() if "longer than" in line]
    assert line.startswith("20 of 21 texts are longer than 128 tokens (sequence_length): 36.9 % of the tokens")


@pytest.mark.slow
def test_file_on_standard_input_is_answered_in_order(folder, tmp_path):
    texts = [f"w{number % 38} {'cat ' * (number % 11)}" for number in range(2000)]
    (tmp_path / "texts.txt").write_text("\n".join(texts))
    with (tmp_path / "texts.txt").open("rb") as file:
        found = ask("--model", folder, "--as=features", "--layers=0", "--pooling=cls", stdin=file)
    assert [answer["tokens"] for answer in found] == [["[CLS]", *text.split(), "[SEP]"] for text in texts]


@pytest.mark.slow
def test_features_of_a_file_are_arrays(folder, tmp_path):
    (tmp_path / "texts.txt").write_text("w1 w2\n\nthe cat\tis\n")
    options = ("--as=features", "--layers=-1,0", "--input", tmp_path / "texts.txt")
    assert ask("--model", folder, *options, "--output", tmp_path / "out.npz") == []
    with np.load(tmp_path / "out.npz") as arrays:
        assert arrays["features"].shape == (4 + 6, 48)
        assert " ".join(arrays["tokens"]) == "[CLS] w1 w2 [SEP] [CLS] the cat [SEP] is [SEP]"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--as=features", "--layers=last"),
            "Layers must be numbers with commas between them. Received: --layers=last.",
        ),
        pytest.param(
            ("--as=fill_mask", "--pooling=cls"),
            "An option must be one of what is asked. Received: pooling for fill_mask.",
            marks=pytest.mark.slow,  # loads Keras; test_load has it too
        ),
    ],
)
def test_wrong_options_are_refused_in_a_line(folder, options, message):
    process = start("--model", folder, *options, "w1")
    printed, errors = process.communicate(timeout=PATIENCE_SECONDS)
    (line,) = errors.decode().splitlines()
    assert (process.returncode, printed) == (2, b"") and line.startswith(f"kbf: {message}")


@pytest.mark.parametrize(
    ("name", "asked_as", "format", "words"),
    [
        (
            "x.parquet",
            None,
            "jsonl",
            "lines of JSON. Received: .*x.parquet, with that of Parquet. Name it x.j",
        ),
        ("x.CSV", "features", "jsonl", "with that of columns between commas. Name it x.jsonl"),
        ("x.jsonl.gz", None, "jsonl", "with that of gzip"),
        (
            "x.jsonl",
            None,
            "glue",
            "columns between tabs. Received: .*, with that of lines of JSON. Name it x.tsv",
        ),
        ("x.npz", None, "jsonl", "ends in .npz must be of features"),
    ],
)
def test_output_with_the_ending_of_another_format_is_refused(tmp_path, name, asked_as, format, words):
    model = save_classifier(tmp_path)
    with pytest.raises(ValueError, match=words):
        check_prediction(model, asked_as, {}, [], tmp_path / name, format)


def test_endings_that_name_the_format_or_none_pass(tmp_path):
    model = save_classifier(tmp_path)
    for name in ("x.jsonl", "x.json", "x.txt", "x", "x.new", ".jsonl"):
        check_prediction(model, None, {}, [], tmp_path / name)
    check_prediction(model, None, {}, [], tmp_path / "x.tsv", "glue")
    check_prediction(model, "features", {}, [], tmp_path / "x.npz")


def test_predictions_do_not_go_into_the_model(tmp_path):
    model = save_classifier(tmp_path)
    with pytest.raises(ValueError, match="must not be in a model or result that is read"):
        check_prediction(model, None, {}, [], model / "x.jsonl")

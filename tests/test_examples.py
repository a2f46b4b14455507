"""The examples run as they stand, started as users start them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
BACKENDS = ["torch", *(pytest.param(name, marks=pytest.mark.slow) for name in ("jax", "tensorflow"))]
ANIMALS, THINGS = ("cat", "dog", "horse", "bird"), ("house", "tree", "river", "road")


def run(folder: Path, *command: str, backend: str = "torch") -> str:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Text, tables, a vocabulary, records, and what the loop of PyTorch makes of them."""
    folder = tmp_path_factory.mktemp("examples")
    lines = [f"the {animal} went from the {thing} to the road and back." for animal in ANIMALS for thing in THINGS]
    lines.append("the film was a joy and the soup was a bore.")  # words of an example
    (folder / "text.txt").write_text("\n\n".join("\n".join(lines[start:] + lines[:start]) for start in range(12)))
    rows = [*((f"a {word} in the house", "animal") for word in ANIMALS), *((f"a {word}", "thing") for word in THINGS)]
    for table in ("train.tsv", "dev.tsv"):
        (folder / table).write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    kbf = ("-m", "keras_bert_flow")
    run(folder, *kbf, "vocab", "--input", "text.txt", "--size", "80", "--output", "vocabulary")
    settings = ["records.sequence_length=32", "records.max_predictions=5", "records.held_out_fraction=0.2"]
    options = [part for setting in settings for part in ("--set", setting)]
    vocabulary = ("--vocab", "vocabulary/vocab.txt", "--objective", "mlm")
    run(folder, *kbf, "records", "--input", "text.txt", *vocabulary, "--output", "records", *options)
    said = run(folder, str(EXAMPLES / "torch_loop.py"), "records", "looped", "--steps", "4", "--batch-size", "4")
    assert said.startswith("step 4: loss ")
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_fit(folder: Path, backend: str):
    script = (str(EXAMPLES / "pretrain_and_finetune.py"), "records", "train.tsv", "dev.tsv", f"out-{backend}")
    said = run(folder, *script, "--steps", "10", "--epochs", "1", "--batch-size", "4", backend=backend)
    assert "'accuracy'" in said and "'label'" in said.splitlines()[-1]
    assert (folder / f"out-{backend}" / "pretraining.csv").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_custom_head(folder: Path, backend: str):
    said = run(folder, str(EXAMPLES / "custom_head.py"), "looped", backend=backend).splitlines()
    assert [line.rpartition(": ")[2].partition(", ")[0] for line in said] == ["film", "film", "soup", "soup"]


@pytest.mark.slow
def test_going_on_from_a_model(folder: Path):
    script = str(EXAMPLES / "go_on_from_a_model.py")
    said = run(folder, script, "looped", "text.txt", "further", "--steps", "10", "--mask", "the [MASK] went.")
    assert [line.split()[0] for line in said.splitlines() if line.startswith(("before", "after"))] == [
        "before",
        "after",
    ]
    assert (folder / "further" / "pretrain" / "model" / "model.safetensors").is_file()


def test_each_example_is_run():
    tested = Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{path.name}"' in tested for path in EXAMPLES.glob("*.py"))

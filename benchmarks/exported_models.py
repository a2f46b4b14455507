"""Export a classifier, and say how large, how quick and how right the exported one is; for `benchmarks.prediction`."""

import argparse
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.peers.predict_exported import ONE_BY_ONE, Exported
from benchmarks.training_step import Timed
from keras_bert_flow.tasks.core.texts import TextExample

INT8 = "-int8"
POSITIONS = 4096


def export_model(model: Path, folder: Path, name: str) -> Path:
    """Return the folder of an exported model.

    Args:
        name: a format, with `-int8` behind it if weights are to be so.
    """
    output = folder / f"exported-{name}"
    command = ["export", str(model), str(output), "--format", name.removesuffix(INT8)]
    options = ["--int8"] if name.endswith(INT8) else []
    subprocess.run([sys.executable, "-m", "keras_bert_flow", *command, *options], stdout=subprocess.DEVNULL, check=True)
    return output


def count_bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def time_one_text(exported: Timed, arguments: argparse.Namespace) -> float:
    """Return the seconds that a text by itself takes, with its encoding."""
    for keep in (False, *[True] * arguments.rounds):
        exported.run("one", 1, keep)
    return exported.seconds("one", arguments.clock) / ONE_BY_ONE


def print_exported(
    folders: Mapping[str, Path], latencies: Mapping[str, float], examples: Sequence[TextExample]
) -> None:
    """Print a table of the exported models: size, time of a text, share of right labels."""
    print("\n| format | MB | ms a text | accuracy |", "|---|---:|---:|---:|", sep="\n")
    for name, folder in folders.items():
        answers = Exported(folder).answer([example.text for example in examples], POSITIONS)
        pairs = zip(answers, examples, strict=True)
        right = sum(answer["label"] == example.label for answer, example in pairs) / len(examples)
        print(f"| {name} | {count_bytes(folder) / 1e6:.1f} | {1000 * latencies[name]:.2f} | {right:.3f} |", flush=True)

"""Count our functions, and the times that each file is opened, in `kbf predict` and two steps of `kbf pretrain`.

    python benchmarks/opened_files.py [predict] [pretrain] [--list]

Each command runs in a process of its own, with a tiny model or tiny records that are made first. A function counts once
however often it is called, and what runs while a module is imported does not count. With --list the functions are
printed too, with their number of calls.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("keras_bert_flow", "beam_jobs", "flows")
PREDICT = ("predict", "--model", "model", "a b c")
PRETRAIN = ("pretrain", "--config", "run.yaml", "--records", "records", "--output", "pretrained")
# Code of a scope without a name of its own is part of the function that it is written in.
NAMELESS = ("<lambda>", "<genexpr>", "<listcomp>", "<dictcomp>", "<setcomp>")


def watch(arguments: list[str], found: Path) -> None:
    """Run `kbf` in this process and write its functions, with their calls, and the files that it opens as JSON."""
    calls: collections.Counter = collections.Counter()
    opened: collections.Counter = collections.Counter()
    prefixes = tuple(f"{ROOT / package}{os.sep}" for package in PACKAGES)
    here = f"{Path.cwd()}{os.sep}"

    importing: collections.Counter = collections.Counter()  # depth by thread

    def count(frame, event, _):
        code, thread = frame.f_code, threading.get_ident()
        if code.co_name == "<module>":
            importing[thread] += {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not importing[thread] and code.co_filename.startswith(prefixes):
            calls[code] += 1

    def audit(event, details):
        if event == "open" and isinstance(details[0], str | bytes):
            path = os.path.abspath(os.fsdecode(details[0]))
            if path.startswith(here):
                opened[path.removeprefix(here)] += 1

    from keras_bert_flow.__main__ import main

    sys.addaudithook(audit)
    sys.argv = ["kbf", *arguments]
    threading.setprofile(count)
    sys.setprofile(count)
    try:
        status = main()
    except SystemExit as end:
        status = end.code
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    functions = [
        (os.path.relpath(code.co_filename, ROOT), code.co_qualname, number)
        for code, number in calls.items()
        if code.co_name not in NAMELESS
    ]
    found.write_text(json.dumps({"functions": functions, "opened": dict(opened)}))
    sys.exit(status)


def make_inputs(folder: Path) -> None:
    """Write a model directory, records and the configuration of two steps of pre-training."""
    from tests.oracles.tiny_model import write_tiny_model
    from tests.oracles.tiny_records import write_tiny_records

    write_tiny_model(folder / "model")
    write_tiny_records(folder / "records")
    (folder / "run.yaml").write_text(
        "name: tiny\nrecords: {sequence_length: 16}\nfinetuning: {sequence_length: 16}\n"
        "model: {size: tiny, num_layers: 1, hidden_dim: 16, num_heads: 2, intermediate_dim: 24, max_positions: 16}\n"
        "pretraining: {batch_size: 5, total_steps: 2, warmup_steps: 1, evaluate_instances: 5}\n"
    )


def main(commands: list[str], is_listed: bool) -> None:
    """Print a table per command: functions, files of code, and opens per file name."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    for name in commands:
        with tempfile.TemporaryDirectory() as place:
            make_inputs(Path(place))
            found = Path(place, "..", f"{Path(place).name}.json").resolve()
            arguments = PREDICT if name == "predict" else PRETRAIN
            command = [sys.executable, str(Path(__file__).resolve()), "--watch", str(found), *arguments]
            process = subprocess.run(command, cwd=place, env=environment, stdout=subprocess.PIPE, text=True)
            if process.returncode:
                sys.exit(f"kbf {name} ended with {process.returncode}: {process.stdout}")
            counts = json.loads(found.read_text())
            found.unlink()
        files = collections.Counter(path for path, _, _ in counts["functions"])
        print(f"kbf {name}: {len(counts['functions'])} functions in {len(files)} files")
        for path, number in sorted(counts["opened"].items()):
            print(f"{number:6} {path}")
        if is_listed:
            for path, function, number in sorted(counts["functions"]):
                print(f"{number:6} {path} {function}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--watch"]:
        watch(sys.argv[3:], Path(sys.argv[2]))
    sys.path.insert(0, str(ROOT))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commands", nargs="*", metavar="COMMAND", help="predict or pretrain; default: both")
    parser.add_argument("--list", action="store_true", help="print the functions")
    chosen = parser.parse_args()
    main(chosen.commands or ["predict", "pretrain"], chosen.list)

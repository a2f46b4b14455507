"""Stand in for `python -m keras_bert_flow`: publish what the next stage needs, at once, and count the calls."""

import os
import signal
import sys
import time
from pathlib import Path

from keras_bert_flow.results.artifacts import publishing
from keras_bert_flow.results.manifest import write_manifest
from keras_bert_flow.stores.publishing import made_at

STAGES = {
    "vocab": "vocabulary",
    "pretrain": "pretraining",
    "distill": "distillation",
    "augment": "augmentation",
    "finetune": "finetuning",
    "report": "evaluation",
}
VOCABULARY = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\ngood\n"
FILES = {
    "vocab": {"vocab.txt": VOCABULARY},
    "records": {"vocab.txt": VOCABULARY},
    "pretrain": {"model/config.json": "{}"},
    "distill": {"model/config.json": "{}"},
    "augment": {"train.jsonl": '{"text": "a", "label": "no"}\n{"text": "b", "label": "yes"}\n'},
    "finetune": {"metrics.json": "{}"},
    "report": {"report.md": "| model | accuracy |\n|---|---|\n| ours | 0.9 |\n", "report.html": "<html></html>"},
}


def main(name: str, *arguments: str) -> int:
    options = dict(zip(arguments[::2], arguments[1::2], strict=True))
    output = Path(options["--output"])
    runs = Path(os.environ.get("FAKE_CALLS") or output.parents[1])
    with open(runs / "calls.txt", "a") as calls:
        calls.write(f"{name} {os.environ['KERAS_BACKEND']}, for {os.environ.get('KBF_RUN_NAME')}\n")
    with open(runs / "arguments.txt", "a") as lines:
        print(name, *arguments, file=lines)
    print(f"{name} says hello")
    if name == os.environ.get("FAKE_REFUSES"):
        print("`batch_size` must be smaller. Received: 9. Try 8.", file=sys.stderr)
        return 2
    if name == os.environ.get("FAKE_SLEEPS"):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
        (runs / "asleep").write_text(str(os.getpid()))
        time.sleep(1000)
    with made_at(options["--output"]) as place, publishing(place) as folder:
        for file_name, content in FILES[name].items():
            (folder / file_name).parent.mkdir(exist_ok=True)
            (folder / file_name).write_text(content)
        write_manifest(folder, STAGES.get(name, name), output.name, {}, {}, {})
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

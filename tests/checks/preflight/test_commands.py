"""What a command is given is checked before its work, and before a backend or Beam is imported."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.checks.preflight.refused import assert_refused
from tests.patience import PATIENCE_SECONDS

PREDICT = "predict --model model"
PAIRS = "evaluate --model masked_lm --minimal-pairs"
REPORT = "report --config run.yaml --finetuned records --pretrained records"
SHAPE = "--set model={num_layers: 1, hidden_dim: 4, num_heads: 2, intermediate_dim: 8, max_positions: 64}"
SHORT = "--set records.sequence_length=8"  # fine-tuning has 128, which concerns no earlier stage
# command line → words of the message
WRONG_COMMANDS = {
    "vocab --input none.txt --output new": "must be a file, a folder or a glob that matches",
    "vocab --input corpus.txt --output dangling": "link that leads nowhere",
    "vocab --input corpus.txt --output corpus.txt": "must not replace what is read",
    "vocab --input corpus.txt --output corpus.txt/new": "must be a folder",
    "vocab --input corpus.txt --output folder": "must be new",
    "vocab --input corpus.txt --output new/../../../../../../../../../../proc/new": "a folder that takes new files",
    "vocab --input corpus.txt --output new --size -5": "greater than or equal to 6",
    "vocab --input corpus.txt --output new --max-rejected-share nan": "finite number",
    "vocab --input corpus.txt --output new --set vocabulary.size.x=3": "a valid integer. Received: {'x': 3}",
    "vocab --input corpus.txt --output new --set vocabulary.size=[": "must be plain YAML",
    "vocab --input corpus.txt --output new --set =3": "must read key=value",
    "vocab --input corpus.txt --output new --set corpus.input.x=3": "Input should be a valid list",
    "vocab --input nope-\u00fc.txt --output new": "Received: nope-\u00fc.txt",
    "vocab --input corpus.txt --output corpus.txt/\u00fc": "must be a folder",
    "vocab --input corpus.txt --output /proc/new": "a folder that takes new files. Received: /proc",
    "records --input none.txt --vocab good_vocab.txt --output new": "glob that matches",
    "records --input corpus.txt --vocab nope.txt --output new": "The vocabulary must be a file",
    "records --input corpus.txt --vocab vocab.txt --output new": r"without \[MASK\]",
    "pretrain --records nope --output new": "must hold manifest.json",
    "pretrain --records model --output new": "must hold manifest.json",
    "pretrain --records nope --output dangling": "link that leads nowhere",
    "pretrain --records records --initial-model nope --output new": "must hold config.json. Received: nope",
    "pretrain --records records --initial-model damaged --output new": "not a whole safetensors file",
    "pretrain --records records --initial-model model --output new": "max_positions=64, not 512.*`model`",
    f"pretrain --records records --initial-model model --output new {SHAPE} {SHORT}": "with other pieces",
    "pretrain --records records --output new --set model.max_positions=8": "`records.sequence_length` must be at most",
    f"pretrain --records records --output new {SHAPE} --set model.max_positions=8 {SHORT}": "model's 8 positions",
    "finetune --model model --task run.yaml --output new": "model's 64 positions. .*finetuning.sequence_length=128",
    "finetune --model model --task short.yaml --set task.dev=odd.tsv --output new": "Received: 'maybe'",
    "finetune --model nope --task run.yaml --output new": "must hold config.json. Received: nope",
    "finetune --model nope --task run.yaml --output corpus.txt": "must be new",
    "evaluate --task run.yaml": "one of --model and --predictions",
    "evaluate --model model --task run.yaml --set task.dev=headless.tsv": "the columns asked for",
    "evaluate --model model --task run.yaml --set task.dev=odd.tsv": "row 3: .* Received: 'maybe'",
    "evaluate --model nope --task run.yaml": "must hold config.json. Received: nope",
    "evaluate --model records --task run.yaml": "must hold config.json. Received: records",
    "evaluate --model model --task run.yaml --set task={kind: regression, train: a, dev: a}": "model of classification",
    "evaluate": "There must be something to score on. Received: neither --config nor --minimal-pairs",
    "evaluate --model model": "Received: neither --config nor --minimal-pairs",
    "evaluate --model model --task run.yaml --limit 3": "--limit must come with --minimal-pairs. Received: --limit 3",
    "evaluate --minimal-pairs pairs.jsonl": "must come with --model.* Received: no --model",
    f"{PAIRS} pairs.jsonl --task run.yaml": "without a task. Received: --config",
    f"{PAIRS} pairs.jsonl --predictions x --set seed=1": "Received: --predictions, --set",
    f"{PAIRS} pairs.jsonl --limit 0": "Invalid value for '--limit'",
    f"{PAIRS} pairs.jsonl --backend theano": "The backend must be one of",
    f"{PAIRS} nope.jsonl": "A table must be a file. Received: nope.jsonl",
    f"{PAIRS} folder": "must end in .jsonl",
    f"{PAIRS} train.tsv": "must end in .jsonl",
    f"{PAIRS} odd_pairs.jsonl": "odd_pairs.jsonl, row 2: a minimal pair must have .* Received: no sentence_good",
    f"{PAIRS} long_pairs.jsonl": "row 1: `sentence_bad` must fit the model's 64 positions.* Received: 513 tokens",
    "evaluate --minimal-pairs pairs.jsonl --model model": "must have a masked-LM head to score tokens. Received: model",
    "evaluate --minimal-pairs pairs.jsonl --model records": "must hold config.json. Received: records",
    "evaluate --minimal-pairs pairs.jsonl --model damaged": "not a whole safetensors file",
    "evaluate --predictions nope --task run.yaml": "Predictions must be in a file",
    f"{REPORT} --records nope --output dangling": "link that leads nowhere",
    f"{REPORT} --records nope --output new": "must hold finetuning. Received: records, which holds records",
    "report --finetuned nope --pretrained nope --records nope --output new": "must hold manifest.json. Received: nope",
    "predict --model nope hello": "must hold config.json. Received: nope",
    "predict --model corpus.txt hello": "must hold config.json. Received: corpus.txt",
    "predict --model damaged hello": "damaged.*model.safetensors: not a whole safetensors file",
    f"{PREDICT} --input nope.tsv": "A table must be a file. Received: nope.tsv",
    f"{PREDICT} --input folder": "A table must end in",
    f"{PREDICT} --input headless.tsv": "the columns asked for",
    f"{PREDICT} --input train.tsv --set text=sentence": "the columns asked for. Received: 'sentence'",
    f"{PREDICT} --set kind=regression hello": "should be 'classification'",
    f"{PREDICT} --set labels=[x,y] hello": "must be those that it was trained on",
    f"{PREDICT} --as features --input nope": "The texts must be a file",
    f"{PREDICT} --as poetry hello": "The task of a model must be one of task, fill_mask",
    f"{PREDICT} --top-k 3 hello": "Received: top_k for task",
    f"{PREDICT} --batch-positions 0 hello": "must be at least 1",
    f"{PREDICT} --backend theano hello": "The backend must be one of",
    f"{PREDICT} --output folder hello": "A file must not be a folder",
    f"{PREDICT} --output new/file.jsonl hello": "in a folder that exists. Received: new/file.jsonl. Create new",
    f"{PREDICT} --output corpus.txt/new hello": "must be a folder",
    f"{PREDICT} --output dangling hello": "link that leads nowhere",
    f"{PREDICT} --output /dev/null hello": "which is a device",
    f"{PREDICT} --output /proc/new hello": "a folder that takes new files",
    f"{PREDICT} --output {'x' * 300} hello": "must be short enough",
    f"{PREDICT} --output new.npz hello": "must be of features",
    f"{PREDICT} --format glue hello": "must have --input and --output",
    f"{PREDICT} --format squad --input train.tsv --output new": "one that predictions of classification have",
    "search --model nope --lines corpus.txt cat": "must hold config.json",
    "search --model model --lines nope cat": "The texts must be a file",
    "search --model model --lines folder cat": "The texts must be a file",
    "search --model model --lines corpus.txt --output folder cat": "A file must not be a folder",
    "search --model model --lines corpus.txt --index short.yaml cat": "must be a folder that `kbf search` made",
    "search --model model --lines corpus.txt --index folder cat": "must be a folder that `kbf search` made",
    "search --model model --lines corpus.txt --index /proc/new cat": "a folder that takes new files",
    "search --model model --lines corpus.txt --top 0 cat": "Invalid value for '--top'",
    "glue-zip nope.tsv --output new.zip": "of files that GLUE names",
    "glue-zip CoLA.tsv --output new.zip": "A table must be a file. Received: CoLA.tsv",
    "glue-zip CoLA.tsv --output folder": "A file must not be a folder",
    "glue-zip CoLA.tsv --output nope/new.zip": "in a folder that exists",
    "run nope.yaml": "The configuration must be a file",
    "run run.yaml --backend theano": "The backend must be one of",
    "run run.yaml --set nothing": "must read key=value",
    "run run.yaml --set sead=1": "is no known setting",
    "run": "must have a configuration file",
    "records": "Missing option",
    "run run.yaml --nope": "No such option",
    "inspect records -n many": "Invalid value for '-n'",
    "inspect nope": "must hold manifest.json",
    "inspect records --part middle": "one of train, held_out. Received: middle",
    "doctor nope": "nope",
    "configs copy nope": "must be one that `kbf configs list` prints",
    "configs copy quickstart /proc/new": "a folder that takes new files",
    "corpus --output folder": "must be new",
    "corpus --output /proc/new": "a folder that takes new files",
}
# Which options there are is known once Apache Beam is imported.
VOCAB = "vocab --input corpus.txt --output new"
WRONG_OPTIONS = {
    f"{VOCAB} --nonsense": "of this command or of Apache Beam. Received: --nonsense",
    f"{VOCAB} more words": "of this command or of Apache Beam. Received: more",
    f"{VOCAB} --direct_num_workers=many": "must have a value of its type",
    f"{VOCAB} --runner Nope": "A runner must be one that Apache Beam has. Received: Nope",
    "records --vocab good_vocab.txt --input corpus.txt --output new --runner a.b.C": "Received: a.b.C: No module",
    "run run.yaml --set beam=--runner=Nope": "A runner must be one that Apache Beam has",
    "run run.yaml --set beam=[1]": "of this command or of Apache Beam. Received: 1",
}


def split(command: str) -> list[str]:
    """Split a command at its blanks, but not within braces."""
    return re.findall(r"(?:[^\s{]|\{[^}]*\})+", command)


@pytest.fixture
def place(place: Path) -> Path:
    (place / "damaged").mkdir()
    for file in (place / "model").iterdir():
        (place / "damaged" / file.name).write_bytes(file.read_bytes()[:200] if file.suffix else file.read_bytes())
    (place / "damaged" / "config.json").write_bytes((place / "model" / "config.json").read_bytes())
    (place / "short.yaml").write_text((place / "run.yaml").read_text() + "finetuning: {sequence_length: 32}\n")
    return place


@pytest.mark.parametrize(("command", "words"), (WRONG_COMMANDS | WRONG_OPTIONS).items(), ids=lambda value: value[:60])
def test_commands_refuse_before_work(command, words, place, capsys):
    assert_refused(split(command), words, place, capsys)


def test_refusals_import_neither_backend_nor_beam_nor_prefect(place):
    commands = [*map(split, WRONG_COMMANDS), ["run", "run.yaml", "--set", "task.dev=odd.tsv"]]
    script = (
        "import json, sys\nfrom keras_bert_flow.cli import app\n"
        "for command in json.load(sys.stdin):\n"
        "    try:\n        app(command, standalone_mode=False)\n"
        "    except Exception as error:\n        assert str(error)\n"
        "    else:\n        sys.exit(f'{command} was not refused')\n"
        "    heavy = [name for name in ('keras', 'torch', 'apache_beam', 'prefect', 'grain') if name in sys.modules]\n"
        "    if heavy:\n        sys.exit(f'{command} imports {heavy}')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
    )
    assert done.returncode == 0, done.stderr

"""What cannot end well is refused before any work: one line, no new file, no backend, no Beam, no server."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from flows.evaluate import evaluate
from flows.finetune import finetune
from flows.pipeline import bert_pipeline
from flows.preprocess import preprocess
from flows.pretrain import pretrain
from keras_bert_flow.cli import app
from keras_bert_flow.cli.mistakes import explain
from tests.patience import PATIENCE_SECONDS

TABLES = {
    "train.tsv": "text\tlabel\ngood\tyes\nbad\tno\n",
    "headless.tsv": "good\tyes\nbad\tno\n",
    "odd.tsv": "text\tlabel\ngood\tyes\nbad\tmaybe\n",
    "one.tsv": "text\tlabel\ngood\tyes\nbad\tyes\n",
    "empty.tsv": "text\tlabel\n",
    "ragged.tsv": "text\tlabel\ngood\tyes\nbad\n",
    "blank.tsv": "text\tlabel\ngood\tyes\n\tno\n",
    "numbers.tsv": "text\ttext_pair\tlabel\na\tb\t1\nc\td\tmuch\n",
    "tags.conll": "EU B-ORG\nrejects O\n\nBritish B-MISC\n",
    "odd.conll": "EU B-ORG\nrejects O\n\nBritish B-ODD\n",
    "broken.json": "{",
    "choices.csv": "sent1,sent2,ending0,ending1,ending2,label\na,b,c,d,e,0\n",
    "names.tsv": "text\tlabel\na\tx|y\nb\tx\n",
    "odd_names.tsv": "text\tlabel\na\tx|z\n",
    "vocab.txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n",
    "good_vocab.txt": "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n",
}
# overrides of a configuration that is right → words of the message
WRONG_SETTINGS = {
    "task.train=nope.tsv": "A table must be a file. Received: .*nope.tsv",
    "task.dev=nope.tsv": "A table must be a file. Received: .*nope.tsv",
    "task.extra_dev.more=nope.tsv": "A table must be a file. Received: .*nope.tsv",
    "task.train=headless.tsv": "must have the columns asked for. .*turn `header` off",
    "task.dev=headless.tsv": "must have the columns asked for",
    "task.text=sentence": "must have the columns asked for. Received: 'sentence'",
    "task.label=class": "must have the columns asked for. Received: 'class'",
    "task.dev=odd.tsv": "row 3: a label must be one that the training table has. Received: 'maybe'",
    "task.extra_dev.more=odd.tsv": "a label must be one that the training table has. Received: 'maybe'",
    "task.labels=[yes_, no_]": "a label must be",
    "task.train=one.tsv": "must have at least two labels",
    "task.train=empty.tsv": "must hold at least one example",
    "task.dev=ragged.tsv": "must have as many columns",
    "task.dev=blank.tsv": "must hold text",
    "task.dev=corpus.txt": "A table must end in",
    "corpus.input=none.txt": "must be a file, a folder or a glob that matches",
    "corpus.input=*.jsonl": "must be a file, a folder or a glob that matches",
    "corpus.input=train.tsv": "A corpus file must end in",
    "corpus.input=[]": "at least 1 item",
    "vocabulary.file=nope.txt": "The vocabulary must be a file",
    "vocabulary.file=vocab.txt": r"must hold .*without \[MASK\]",
    "runs=dangling": "link that leads nowhere",
    "runs=dangling/below": "link that leads nowhere",
    "runs=corpus.txt": "must be a folder",
    "runs=loop": "link that leads nowhere",
    "runs=" + "x" * 300: "must be short enough",
    "runs=gs://bucket/runs": "must be on a local disk",
    "model.num_heads=5": "`hidden_dim` must be divisible by `num_heads`",
    "distribution.devices=3": "Each device must get as many sequences",
    "distribution={kind: model_parallel, model_parallel: 2}": "needs jax. Received: backend=torch",
    "finetuning.seeds=[1, 1]": "must name each seed once",
    "finetuning.sequence_length=1000": "must be at most `model.max_positions`",
    "pretraining.warmup_steps=9999999": "must be at most `total_steps`",
    "task={kind: regression, train: numbers.tsv, dev: numbers.tsv}": "numbers.tsv, row 3",
    "task={kind: token_classification, train: tags.conll, dev: odd.conll}": "ODD",
    "task={kind: question_answering, train: broken.json, dev: broken.json}": "must be JSON",
    "task={kind: multiple_choice, train: choices.csv, dev: choices.csv}": "Received: 'ending3'",
    "task={kind: multi_label, train: names.tsv, dev: odd_names.tsv}": "'z'",
    "task={kind: sentence_embedding, train: train.tsv, dev: train.tsv}": "Received: 'text_pair'",
}
WRONG_COMMANDS = {
    "vocab --input none.txt --output new": "must be a file, a folder or a glob that matches",
    "vocab --input corpus.txt --output dangling": "link that leads nowhere",
    "vocab --input corpus.txt --output corpus.txt": "must be new",
    "vocab --input corpus.txt --output corpus.txt/new": "must be a folder",
    "vocab --input corpus.txt --output folder": "must be new",
    "records --input none.txt --vocab good_vocab.txt --output new": "glob that matches",
    "records --input corpus.txt --vocab nope.txt --output new": "The vocabulary must be a file",
    "records --input corpus.txt --vocab vocab.txt --output new": r"without \[MASK\]",
    "pretrain --records nope --output new": "must hold manifest.json",
    "pretrain --records nope --output dangling": "link that leads nowhere",
    "finetune --model nope --task run.yaml --set task.dev=odd.tsv --output new": "Received: 'maybe'",
    "finetune --model nope --task run.yaml --output corpus.txt": "must be new",
    "evaluate --model nope --task run.yaml --set task.train=headless.tsv": "the columns asked for",
    "report --finetuned a --pretrained b --records c --output dangling": "link that leads nowhere",
    "run nope.yaml": "The configuration must be a file",
    "run run.yaml --backend theano": "The backend must be one of",
    "run run.yaml --set nothing": "must read key=value",
    "run run.yaml --set sead=1": "is no known setting",
    "run": "Missing argument",
    "records": "Missing option",
    "run run.yaml --nope": "No such option",
    "inspect records -n many": "Invalid value for '-n'",
}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with a configuration that is right and files that are wrong."""
    for name, content in TABLES.items():
        (tmp_path / name).write_text(content)
    (tmp_path / "corpus.txt").write_text("A cat sat. It ate.\n\nA dog ran.\n")
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "folder").mkdir()
    values = {"task": {"train": "train.tsv", "dev": "train.tsv"}, "corpus": {"input": ["corpus.txt"]}}
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    return tmp_path


def assert_refused(arguments: list[str], words: str, place: Path, capsys: pytest.CaptureFixture) -> None:
    before = sorted(place.rglob("*"))
    with pytest.raises(Exception, match=".") as caught:
        app(arguments, standalone_mode=False)
    assert explain(caught.value) == 2
    error = capsys.readouterr().err
    assert error.startswith("kbf: ") and error.count("kbf: ") == 1 and error.count("\n") == 1
    assert "Errno" not in error and len(error) < 700
    with pytest.raises(ValueError, match=words):
        raise ValueError(error)
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize(("setting", "words"), WRONG_SETTINGS.items(), ids=lambda value: value[:50])
def test_run_refuses_before_work(setting, words, place, capsys):
    assert_refused(["run", "run.yaml", "--set", setting], words, place, capsys)


@pytest.mark.parametrize(("command", "words"), WRONG_COMMANDS.items(), ids=lambda value: value[:60])
def test_commands_refuse_before_work(command, words, place, capsys):
    assert_refused(command.split(), words, place, capsys)


@pytest.mark.parametrize(
    ("flow", "setting", "words"),
    [
        (bert_pipeline, "task.train=nope.tsv", "A table must be a file"),
        (preprocess, "corpus.input=none.txt", "glob that matches"),
        (pretrain, "model.num_heads=5", "divisible"),
        (finetune, "task.dev=odd.tsv", "'maybe'"),
        (evaluate, "task.extra_dev.more=nope.tsv", "A table must be a file"),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_flows_refuse_before_their_first_stage(flow, setting, words, place):
    before = sorted(place.rglob("*"))
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        flow.fn("run.yaml", (setting,))
    assert sorted(place.rglob("*")) == before


def test_refusal_imports_neither_backend_nor_beam_nor_prefect(place):
    script = (
        "import sys\nfrom keras_bert_flow.cli import app\n"
        "try:\n    app(['run', 'run.yaml', '--set', 'task.dev=odd.tsv'], standalone_mode=False)\n"
        "except ValueError as error:\n    print('maybe' in str(error))\n"
        "print([name for name in ('keras', 'torch', 'apache_beam', 'prefect', 'grain') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        check=True,
    )
    assert done.stdout.split("\n")[:2] == ["True", "[]"]


def test_missing_packages_are_named_together(place, monkeypatch, capsys):
    missing = {"prefect", "apache_beam"}
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name in missing else name)
    words = r"prefect, apache_beam, not installed. pip install 'keras-bert-flow\[beam,flows\]'"
    assert_refused(["run", "run.yaml"], words, place, capsys)

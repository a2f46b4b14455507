"""What a user may not read or write is refused in one line, with nothing left behind; root may, so others are asked."""

import os
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.checks.preflight.refused import assert_refused
from tests.oracles.tiny_model import write_tiny_model

NOBODY = 65534
DENIED = "permission denied. Change its permissions or choose another path"
# command line → words of the message; `closed` may not be written, `secret` and what is in it not be read
WRONG_COMMANDS = {
    "vocab --input corpus.txt --output closed/new": f"closed: {DENIED}",
    "vocab --input corpus.txt --output closed/below/new": f"closed: {DENIED}",
    "vocab --input corpus.txt --output secret/new": DENIED,
    "vocab --input secret --output new": "A folder of a corpus must be readable. Received: secret",
    "vocab --input secret.txt --output new": "A corpus file must exist and be readable. Received: secret.txt",
    "records --input corpus.txt --vocab vocab.txt --output closed/new": f"closed: {DENIED}",
    "records --input corpus.txt --vocab secret.txt --output new": "'--vocab': path 'secret.txt' is not readable",
    "corpus --output closed/new": f"closed: {DENIED}",
    "configs copy quickstart closed/new.yaml": f"closed: {DENIED}",
    "configs copy quickstart closed": f"closed: {DENIED}",
    "pretrain --records secret --output new": "'--records': path 'secret' is not readable",
    "finetune --model model --task run.yaml --output closed/new": f"closed: {DENIED}",
    "finetune --model secret --task run.yaml --output new": "'--model': path 'secret' is not readable",
    "report --finetuned model --pretrained model --records model --output closed/new": f"closed: {DENIED}",
    "predict --model model --output closed/new.jsonl hello": f"closed: {DENIED}",
    "predict --model model --input secret.txt": "'--input': path 'secret.txt' is not readable",
    "search --model model --lines corpus.txt --output closed/new cat": f"closed: {DENIED}",
    "search --model model --lines corpus.txt --index closed/new cat": f"closed: {DENIED}",
    "glue-zip CoLA.tsv --output closed/new.zip": f"closed: {DENIED}",
    "run run.yaml --set runs=closed/new": f"closed: {DENIED}",
    "run run.yaml --set task.train=secret.tsv": f"secret.tsv: {DENIED}",
    "run run.yaml --set corpus.input=secret.txt": "must exist and be readable. Received: .*secret.txt",
    "run run.yaml --set vocabulary.file=secret.txt": f"secret.txt: {DENIED}",
    "run secret.txt": "secret.txt",
}


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Change to a folder that any user may enter, which those of pytest are not."""
    folder = Path(tempfile.mkdtemp(prefix="kbf-test-"))
    folder.chmod(0o777)
    write_tiny_model(folder / "model")
    (folder / "corpus.txt").write_text("A cat sat. It ate.\n\nA dog ran.\n")
    shutil.copyfile(folder / "model" / "vocab.txt", folder / "vocab.txt")
    for name in ("train.tsv", "secret.tsv"):
        (folder / name).write_text("text\tlabel\ngood\tyes\nbad\tno\n")
    values = {"task": {"train": "train.tsv", "dev": "train.tsv"}, "corpus": {"input": ["corpus.txt"]}}
    (folder / "run.yaml").write_text(yaml.safe_dump(values))
    (folder / "secret.txt").write_text("A cat sat.\n")
    (folder / "closed").mkdir()
    (folder / "secret").mkdir()
    for name, mode in (("closed", 0o555), ("secret", 0), ("secret.txt", 0), ("secret.tsv", 0)):
        (folder / name).chmod(mode)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    yield folder
    for name in ("closed", "secret"):
        (folder / name).chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize(("command", "words"), WRONG_COMMANDS.items(), ids=lambda value: value[:60])
def test_files_of_others_are_refused_before_work(command, words, place, capfd):
    if os.geteuid() == 0:
        assert_as_nobody(command.split(), words, place, capfd)
    else:
        assert_refused(command.split(), words, place, capfd)


def assert_as_nobody(arguments: list[str], words: str, place: Path, capfd: pytest.CaptureFixture) -> None:
    """Do so in a forked child: a new interpreter may lie where nobody may read it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        message, status = "", 1
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            assert_refused(arguments, words, place, capfd)
            status = 0
        except BaseException:
            message = traceback.format_exc()
        finally:
            os.write(writer, message.encode())
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as file:
        message = file.read()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, message

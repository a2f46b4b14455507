"""The code blocks of the documentation: each is run, on small files at the paths that it names, or says why not."""

import itertools
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.documented import COMMANDS, PAGES, PYTHON, ROOT, SESSION, SHOWN, read_blocks
from tests.documented_data import shorten, write_data
from tests.patience import PATIENCE_SECONDS

MODEL = "out/finetuned/pretrained/seed-1/model"
ADAPTER = "--set finetuning.lora_rank=2 --set finetuning.lora_output=adapter"
CONVERT = "kbf convert out/pretrained/model MODEL --positions 512"
FINETUNE = "kbf finetune --config mine.yaml --model out/pretrained/model --output"
# What `…` stands for.
ELIDED = {
    "kbf records": "--input 'text/*.txt' --vocab out/vocabulary/vocab.txt --output out/records",
    "kbf pretrain": "--config mine.yaml --output out/pretrained",
}
# What a page says is there already, beside what README and workflow.md make. Its name: lines of bash.
BEFORE = {
    "corpora.md": """
        cp out/vocabulary/vocab.txt vocab.txt
        cp out/records/train-00000-*.tfrecord tf_examples.tfrecord-00000
        cp out/records/held_out-*.tfrecord dev.tfrecord""",
    "doctor.md": "cp -r out/records records",
    "formats.md": f"""
        kbf convert out/pretrained/model uncased_L-12_H-768_A-12 --format tensorflow
        {FINETUNE} adapted-runs {ADAPTER}
        cp -r adapted-runs/pretrained/seed-1/model adapter
        rm -r out/finetuned; {FINETUNE} out/finetuned --set finetuning.pooling=null
        mkdir mine; cp out/vocabulary/vocab.txt mine; echo neologism >> mine/vocab.txt""",
    "objectives.md": "cp out/vocabulary/vocab.txt vocab.txt",
    "recipes.md": "mkdir B; cp -r out/pretrained/model B/model",
    "embeddings.md": f"""
        {CONVERT}
        kbf finetune --model MODEL --config configs/tasks/text_pairs.yaml --output out/pairs
        mkdir -p path/to/any; cp -r MODEL path/to/any/encoder""",
    "evaluation.md": f"""
        {CONVERT}
        kbf finetune --model MODEL --config configs/tasks/rte.yaml --output out/rte
        kbf finetune --model MODEL --config configs/tasks/mnli.yaml --output out/mnli
        kbf finetune --model MODEL --config configs/tasks/cola.yaml --output out/cola""",
    "finetuning.md": f"rm -r out/finetuned; {FINETUNE} out/finetuned {ADAPTER}",
    "prediction.md": f"""
        {CONVERT}
        kbf finetune --model MODEL --config configs/tasks/ner_dutch.yaml --output out/names
        kbf finetune --model MODEL --config configs/tasks/squad.yaml --output out/squad""",
    "tasks.md": CONVERT,
    "tokenizer.md": "cp -r out/pretrained/model MODEL",
    "tuning.md": CONVERT,
}
# What the Python of a page finds, beside what its commands make: lines of bash, and names.
BEFORE_PYTHON = {
    "export.md": (
        f"""
        kbf export {MODEL} as-tensorflow --format saved_model --strings
        kbf export {MODEL} as-litert --format litert
        cp -r as-tensorflow/. as-litert/. served""",
        "import tensorflow_text\n",  # one folder serves all blocks here, and its SavedModel takes texts
    ),
    "README.md": ("kbf run mine.yaml --set name=Quickstart", ""),
    "finetuning.md": ("", "import peft, transformers\nimport keras_bert_flow as kbf\nbase = 'out/pretrained/model'\n"),
}
PARTS = {page: [block for block in read_blocks(page) if block.to_run()] for page in PAGES}
FIRST = (ROOT / "README.md", ROOT / "docs" / "workflow.md")
OTHERS = [page for page in PAGES if PARTS[page] and page not in FIRST]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_block_is_run_or_says_why_not(page: Path):
    blocks, text = list(read_blocks(page)), page.read_text(encoding="utf-8")
    assert len(re.findall(r"^ *```", text, re.MULTILINE)) == 2 * len(blocks), "A fence is not closed as it was opened."
    marks = sum(len(block.reasons) + bool(block.run_by) + len(block.unread) for block in blocks)
    assert text.count("\n<!-- ") + text.count("  <!-- ") == marks, "A mark must be on the line above its block."
    for block in blocks:
        assert block.language in (*COMMANDS, SESSION, PYTHON, *SHOWN), block.place
        assert not block.unread, (block.place, block.unread)
        assert all(block.reasons.values()), f"{block.place}: a mark without a reason."
        for start in block.reasons:
            assert any(part.startswith(start) for part in block.parts), (block.place, start)
        named = [block.run_by, *re.findall(r"\btests/[\w./]+\w", " ".join(block.reasons.values()))]
        assert all((ROOT / name).exists() for name in named), (block.place, named)
        assert block.language in SHOWN or block.parts, f"{block.place}: no command. Mark output as ```text."


def run(folder: Path, script: str) -> str:
    """Run lines of bash as a user would, and return what is wrong with them, or ""."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    environment = {"KERAS_BACKEND": "torch"} | os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=environment | {"PREFECT_HOME": str(folder / "prefect")},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    return "" if done.returncode == 0 else f"{script}\nstatus {done.returncode}\n{(done.stdout + done.stderr)[-3000:]}"


def fill_in(command: str, folder: Path) -> str:
    """Return a command with results of this folder for `KEY` and `…`, and with few steps."""
    command = re.sub(r"runs/(\w+)/KEY", lambda found: newest(folder / "runs" / found[1]), command)
    stages = itertools.cycle(("evaluation", "finetuning"))
    command = re.sub(r"\bKEY\b", lambda _: Path(newest(folder / "runs" / next(stages))).name, command)
    for start, options in ELIDED.items():
        if command.startswith(start):
            command = command.replace("…", options)
    return shorten(command)


def newest(stage: Path) -> str:
    results = [path for path in stage.glob("*") if (path / "manifest.json").is_file()]
    return str(max(results, key=lambda path: path.stat().st_mtime).relative_to(stage.parents[1]))


def run_command(folder: Path, command: str) -> str:
    """Run a command that makes its `--output` anew; what `kbf init` has written becomes short."""
    command, is_draft = fill_in(command, folder), command.startswith("kbf init")
    for output in re.findall(r"--output (\S+)", command):
        # A draft is a configuration and, beside it, the two parts of the table.
        for old in folder.glob(f"{Path(output).stem}[-.]*") if is_draft else [folder / output]:
            shutil.rmtree(old) if old.is_dir() else old.unlink(missing_ok=True)
    problem = run(folder, command)
    if is_draft and not problem:
        config = folder / "mine.yaml"
        config.write_text(shorten(config.read_text(encoding="utf-8")), encoding="utf-8")
    return problem


def prepare(folder: Path, lines: str) -> list[str]:
    return [run(folder, line) for line in lines.splitlines()]


def run_page(folder: Path, page: Path) -> list[str]:
    """Run what a page has, its commands first, and return what went wrong."""
    problems = prepare(folder, BEFORE.get(page.name, ""))
    for block in read_blocks(page):
        if saved := re.match(r"saved as (\S+),", block.reasons.get("", "")):
            (folder / saved[1]).write_text("".join(block.parts), encoding="utf-8")
    code = []
    for block in PARTS[page]:
        if block.language == PYTHON:
            code += [fill_in(part, folder) for part in block.to_run()]
        else:
            said = [run_command(folder, part) for part in block.to_run()]
            problems += [f"{block.place}: {problem}" for problem in said if problem]
    if code:
        bash, names = BEFORE_PYTHON.get(page.name, ("", ""))
        backend = os.environ.get("KERAS_BACKEND", "torch")
        script = "\n".join([names, *code]).replace('"KERAS_BACKEND"] = "jax"', f'"KERAS_BACKEND"] = "{backend}"')
        (folder / "blocks.py").write_text(script, encoding="utf-8")
        problems += [*prepare(folder, bash), run(folder, "python blocks.py")]
    return [problem for problem in problems if problem]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of somebody who has given the commands of README, then those of workflow.md."""
    folder = tmp_path_factory.mktemp("documented")
    write_data(folder)
    problems = [problem for page in FIRST for problem in run_page(folder, page)]
    assert not problems, "\n".join(problems)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", OTHERS, ids=lambda page: page.name)
def test_blocks_run(page: Path, made: Path, tmp_path: Path):
    folder = tmp_path / "documented"
    shutil.copytree(made, folder)
    problems = run_page(folder, page)
    assert not problems, "\n".join(problems)

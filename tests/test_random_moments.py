"""Inputs replaced, and stores collected, at random moments: no key lies, and nothing that a run needs is lost."""

import os
import random
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from beam_jobs.build_vocabulary import build_vocabulary
from keras_bert_flow.backends.runtime import seed_everything
from keras_bert_flow.config.text import VocabularyConfig
from keras_bert_flow.conversion.model_directory import save_model_directory
from keras_bert_flow.results.choosing import choose, find_related, remove_results
from keras_bert_flow.results.manifest import read_manifest
from keras_bert_flow.results.publishing import find_needs
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES, write_vocabulary
from keras_bert_flow.training.finetuning.finetune import finetune
from keras_bert_flow.training.pretraining.pretrain import pretrain
from keras_bert_flow.training.pretraining.pretrainers import make_pretrainer
from tests.beam_jobs.conftest import build, make_corpus
from tests.flows.conftest import ROOT, tiny_config  # noqa: F401
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records
from tests.patience import PATIENCE_SECONDS
from tests.training.separable_task import WORDS, make_task_config, write_table

SWAPS = 6  # of each input
PIECES = [*SPECIAL_PIECES, *(f"{mark}{letter}" for letter in "abcdefghijklmnopqrstuvwxyz" for mark in ("", "##"))]


def ignore(line):
    pass


def write_model(folder, seed):
    write_vocabulary(folder.with_suffix(".txt"), [*SPECIAL_PIECES, *WORDS])
    seed_everything(seed)
    save_model_directory(make_pretrainer(make_tiny_config().model, 50), folder, folder.with_suffix(".txt"))


class Case:
    """A stage, one of its inputs, and two contents of it: the key and essence of the result of each."""

    def __init__(self, folder: Path, name: str):
        self.folder, self.name = folder, name
        folder.mkdir()
        self.path, self.contents = self._write()
        self.truths, self.seconds = {}, 0.0
        for content in self.contents[: 1 if name == "steps" else 2]:  # other records are not as their manifest says
            self.path.write_bytes(content)
            started = time.monotonic()
            key, essence = self.make(folder / "truth")
            self.seconds = time.monotonic() - started
            self.truths[key] = essence
            shutil.rmtree(folder / "truth")
        assert len(self.truths) == len({*self.truths.values()}) == (1 if name == "steps" else 2)
        self.path.write_bytes(self.contents[0])

    def _write(self) -> tuple[Path, list[bytes]]:
        folder = self.folder
        self.corpus = make_corpus(folder / "corpus.txt")
        write_vocabulary(folder / "words.txt", PIECES)
        if self.name in ("vocabulary", "records of text"):
            text = (folder / "corpus.txt").read_bytes()
            return folder / "corpus.txt", [text, text.replace(b"a", b"o")]
        if self.name == "records of pieces":
            return folder / "words.txt", [("\n".join(pieces) + "\n").encode() for pieces in (PIECES, [*PIECES, "th"])]
        if self.name == "steps":
            write_tiny_records(folder / "records")
            write_tiny_records(folder / "others", seed=1)
            name = "train-00000-of-00002.tfrecord"
            path = folder / "records" / name
            return path, [path.read_bytes(), (folder / "others" / name).read_bytes()]
        write_model(folder / "model", seed=5)
        write_table(folder / "train.tsv", 40, seed=0)
        write_table(folder / "dev.tsv", 20, seed=1)
        if self.name == "weights":
            write_model(folder / "other", seed=6)
            return folder / "model" / "model.safetensors", [
                (folder / part / "model.safetensors").read_bytes() for part in ("model", "other")
            ]
        table = (folder / "train.tsv").read_bytes()
        return folder / "train.tsv", [
            table,
            table.replace(b"\tno", b"\t?").replace(b"\tyes", b"\tno").replace(b"\t?", b"\tyes"),
        ]

    def make(self, output: Path) -> tuple[str, bytes]:
        """Build the result; return its key and what it was made of."""
        folder = self.folder
        if self.name == "vocabulary":
            made = build_vocabulary(self.corpus, VocabularyConfig(size=60), output)
            essence = (Path(made).parent if Path(made).is_file() else Path(made)) / "vocab.txt"
        elif self.name.startswith("records"):
            made = build(self.corpus, folder / "words.txt", output)
            return read_manifest(output).key, b"".join(path.read_bytes() for path in sorted(output.glob("*.tfrecord")))
        elif self.name == "steps":
            pretrain(make_tiny_config(), folder / "records", output, ignore)
            essence = output / "model" / "model.safetensors"
        else:
            config = make_task_config(folder, epochs=2, seeds=(1,), compare_random=False)
            finetune(config, folder / "model", output, ignore)
            essence = output / "pretrained" / "seed-1" / "model" / "model.safetensors"
        return read_manifest(output).key, essence.read_bytes()


NAMES = ("vocabulary", "records of text", "records of pieces", "steps", "weights", "table")


def swap(case: Case, delay: float, way: str, other: bytes) -> None:
    """Give a path another content after a delay; all but the first way put the first one back."""
    time.sleep(delay)
    path, new = case.path, case.path.with_name("new")
    if way == "rewritten":  # in place, with the times that it had
        before, times = path.read_bytes(), path.stat()
        for content in (other, before):
            path.write_bytes(content)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
            time.sleep(delay / 4)
        return
    new.write_bytes(other)
    if way == "replaced":
        os.replace(new, path)
        return
    os.link(path, kept := path.with_name("kept"))
    os.replace(new, path)
    time.sleep(delay / 4)
    os.replace(kept, path)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_replaced_inputs_leave_the_result_of_what_was_read_or_none(tmp_path, name):
    seed = int.from_bytes(os.urandom(4))
    print("seed", seed)  # shown if it fails
    rng, case = random.Random(seed), Case(tmp_path / "case", name)
    ends = []
    for number in range(SWAPS):
        case.path.write_bytes(case.contents[0])
        time.sleep(0.05)
        output, way = tmp_path / f"out-{number}", rng.choice(("replaced", "undone", "rewritten"))
        thread = threading.Thread(target=swap, args=(case, case.seconds * rng.random(), way, case.contents[1]))
        thread.start()
        try:
            key, essence = case.make(output)
        except ValueError as error:
            assert any(part in str(error) for part in ("must not change", "must be as manifest.json says")), error
            assert "\n" not in str(error)
            assert not output.exists()
            ends.append("refused")
        else:
            assert case.truths[key] == essence, f"{way}: the key lies"
            ends.append("made")
        thread.join()
    assert "refused" in ends


@pytest.mark.slow
def test_collections_at_random_moments_of_a_run_lose_nothing(tiny_config, tmp_path):  # noqa: F811
    runs, rng = tiny_config.parent / "runs", random.Random(os.urandom(4))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    environment |= {"PREFECT_HOME": str(tmp_path / "prefect"), "PYTHONPATH": str(ROOT)}
    command = (sys.executable, "-m", "keras_bert_flow", "run", "tiny.yaml")
    run = subprocess.Popen(
        command, cwd=tiny_config.parent, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    collections, kept, deadline = 0, 0, time.monotonic() + PATIENCE_SECONDS

    def choose_now(results):
        return choose(results, time.time(), 0.0, None, find_needs(runs), runs)

    while run.poll() is None and not any(runs.glob("evaluation/*")) and time.monotonic() < deadline:
        time.sleep(2 * rng.random())
        if runs.is_dir():
            choices = choose_now(find_related(runs))
            removed, _ = remove_results(runs, [choice.result for choice in choices if not choice.is_kept], choose_now)
            collections += 1
            kept += len(choices) - len(removed)
    printed = run.communicate(timeout=PATIENCE_SECONDS)[0]
    assert run.returncode == 0, printed
    assert collections >= 20 and kept > 0
    done = subprocess.run(
        command, cwd=tiny_config.parent, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert done.returncode == 0 and ": running: " not in done.stdout, done.stdout

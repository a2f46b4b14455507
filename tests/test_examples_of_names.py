"""The example in the docstring of every public name runs, and gives what it says."""

import doctest
import inspect
import json
import shutil

import numpy as np
import pytest
import yaml

import keras_bert_flow as kbf
from tests.oracles.tiny_records import VOCABULARY_SIZE, make_tiny_config, write_tiny_records

pytestmark = pytest.mark.any_backend

REVIEWS = [("the film was fine", "pos"), ("a dull story", "neg"), ("a good actor", "pos"), ("it seemed bad", "neg")]
WORDS = [*dict.fromkeys(" ".join(text for text, _ in REVIEWS).split()), "sad", "long", "slow", "house"]
WORDS += [f"word{number}" for number in range(5 + len(WORDS), VOCABULARY_SIZE)]
# They import TensorFlow Text, or trace and convert a model: half a minute each.
SLOW = ("export_model", "from_keras_hub", "to_keras_hub")
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The working directory of the examples, with the files that docs/reference/python.md names."""
    folder = tmp_path_factory.mktemp("examples")
    write_tiny_records(folder / "records", words=WORDS)
    table = "".join(f"{text}\t{label}\n" for text, label in [("text", "label"), *REVIEWS, *REVIEWS])
    (folder / "reviews.tsv").write_text(table)
    (folder / "texts.txt").write_text("".join(f"{text}\n" for text, _ in REVIEWS))
    pair = {"sentence_good": "the film was fine", "sentence_bad": "the film fine was", "UID": "order"}
    (folder / "pairs.jsonl").write_text(json.dumps(pair) + "\n")
    tiny = make_tiny_config(total_steps=4, warmup_steps=1).model_dump(mode="json", exclude_unset=True)
    task = {"name": "reviews", "train": "reviews.tsv", "dev": "reviews.tsv"}
    finetuning = tiny["finetuning"] | {"seeds": [1], "epochs": 1, "random_max_epochs": 1, "batch_size": 4}
    config = tiny | {"name": "reviews", "runs": "runs", "task": task, "finetuning": finetuning}
    config["distillation"] = {"student": tiny["model"], "total_steps": 4, "warmup_steps": 1, "batch_size": 5}
    (folder / "run.yaml").write_text(yaml.safe_dump(config))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        _run_stages(kbf.load_config("run.yaml"))
    return folder


def _run_stages(config) -> None:
    made = kbf.pretrain(config, "records", "runs/pretraining/1", report=[].append)
    shutil.copytree(made / "model", "model")
    made = kbf.finetune(config, "model", "runs/finetuning/1", report=[].append)
    shutil.copytree(made / "pretrained" / "seed-1" / "model", "classifier")
    kbf.write_evaluation(config, "runs/finetuning/1", "runs/pretraining/1", "records", "runs/evaluation/1")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in SLOW else name for name in kbf.__all__]
)
def test_example_runs(name, folder, monkeypatch):
    monkeypatch.chdir(folder)
    value = getattr(kbf, name)
    example = doctest.DocTestParser().get_doctest(
        inspect.getdoc(value) or "", {"kbf": kbf, "np": np}, f"kbf.{name}", inspect.getsourcefile(value), 0
    )
    assert example.examples, f"The docstring of kbf.{name} has no example"
    said: list[str] = []
    results = doctest.DocTestRunner(optionflags=FLAGS).run(example, out=said.append)
    assert not results.failed, "".join(said)
    assert results.attempted == len(example.examples)  # none is skipped

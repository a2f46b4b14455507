"""Kill `kbf vocab`, `records`, `pretrain` and `finetune` at random moments: the same bytes, and nothing left behind."""

import sys

import keras
import numpy as np
import pytest
import yaml

from keras_bert_flow.results.manifest import check_folder
from tests.beam_jobs.conftest import as_text, names_in
from tests.training.command_kills import GROUP, LEADER, WORKER, Workplace, read_published

pytestmark = pytest.mark.slow

TWO_WORKERS = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")
COMMANDS = {
    "vocabulary": ("vocab", "--config", "config.yaml", "--output", "vocabulary"),
    "records": ("records", "--config", "config.yaml", "--vocab", "vocabulary/vocab.txt", "--output", "records"),
    "pretrained": ("pretrain", "--config", "config.yaml", "--records", "records", "--output", "pretrained"),
    "finetuned": ("finetune", "--task", "config.yaml", "--model", "pretrained/model", "--output", "finetuned"),
}
KILLS = 15  # of each command
WITHOUT_BEAM = ("pretrained", "finetuned")  # the others load no Keras, and are killed beside PyTorch's alone
CONFIG = {
    "corpus": {"input": ["corpus.txt"], "lines": "sentences"},
    "vocabulary": {"size": 150},
    "records": {"sequence_length": 32, "max_predictions": 5, "duplication": 2, "held_out_fraction": 0.1, "shards": 2},
    "model": {"num_layers": 2, "hidden_dim": 32, "num_heads": 2, "intermediate_dim": 64, "max_positions": 32},
    "pretraining": {
        "batch_size": 8,
        "total_steps": 700,
        "warmup_steps": 10,
        "masking": "dynamic",
        "log_every_steps": 35,
        "evaluate_every_steps": 70,
        "checkpoint_every_steps": 25,
        "evaluate_instances": 50,
    },
    "task": {"name": "words", "train": "train.tsv", "dev": "dev.tsv"},
    "finetuning": {"batch_size": 8, "epochs": 8, "sequence_length": 32, "seeds": [1, 2], "random_max_epochs": 8},
}


def make_workplace(folder) -> Workplace:
    """Write a corpus, the tables of a task and a configuration."""
    folder.mkdir()
    rng = np.random.default_rng(3)
    words = [
        f"{first}{second}" for first in ("ba", "ce", "di", "fo", "gu") for second in ("l", "mn", "rst", "v", "xyz")
    ]

    def sentence(topic):
        return " ".join(rng.choice(words[topic::3], rng.integers(3, 9)))

    documents = [[sentence(number % 3) for _ in range(rng.integers(2, 9))] for number in range(400)]
    (folder / "corpus.txt").write_text(as_text(documents))
    for part, rows in (("train", 120), ("dev", 30)):
        lines = [f"{sentence(row % 3)}\t{'abc'[row % 3]}" for row in range(rows)]
        (folder / f"{part}.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    return Workplace(folder)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """A folder for undisturbed runs and one, with the same inputs, for those that are killed."""
    folder = tmp_path_factory.mktemp("kills")
    return make_workplace(folder / "whole"), make_workplace(folder / "killed")


@pytest.mark.parametrize("stage", COMMANDS)  # each command reads what the killed ones before it have made
def test_commands_killed_at_random_moments_publish_the_same_bytes(stage, places):
    whole, killed = places
    variants = {(): whole.run(COMMANDS[stage])}
    wanted = read_published(whole.folder / stage)
    if stage not in WITHOUT_BEAM:
        (whole.folder / stage).rename(whole.folder / f"one-{stage}")
        variants[TWO_WORKERS] = whole.run([*COMMANDS[stage], *TWO_WORKERS])
        assert read_published(whole.folder / stage) == wanted
    before, rng = names_in(killed.folder), np.random.default_rng([7, list(COMMANDS).index(stage)])
    kills, rounds, starts = [], 0, 0
    needed = KILLS if stage in WITHOUT_BEAM or keras.backend.backend() == "torch" else 0
    while len(kills) < needed:
        starts += 1
        assert starts <= 6 * KILLS  # one that ends before its kill is followed by another
        options = list(variants)[rng.integers(len(variants))]
        victim = rng.choice([LEADER, GROUP, WORKER] if options else [LEADER, GROUP])
        kill = killed.run_and_kill([*COMMANDS[stage], *options], victim, rng.uniform(0, variants[options]))
        report(stage, options, kill)
        assert kill.status in (0, -9) or (kill.status == 1 and victim == WORKER), kill
        assert (kill.status == 0) == (killed.folder / stage).exists() or kill.status == -9, kill
        kills += [kill] if kill.is_hit else []
        if (killed.folder / stage).exists() and len(kills) < needed:
            check(killed, stage, wanted, before)
            (killed.folder / stage).rename(killed.folder / "tmp" / f"{stage}-{rounds}")
            rounds += 1
    killed.run(COMMANDS[stage])
    check(killed, stage, wanted, before)


def check(place, stage, wanted, before):
    """Compare a published folder with the undisturbed one, and see that nothing else is new beside it."""
    place.run(COMMANDS[stage])  # finds it finished, and clears what a kill after the last rename left
    check_folder(place.folder / stage)
    assert read_published(place.folder / stage) == wanted
    assert {*names_in(place.folder)} - {*before} <= {stage, "tmp", "tmp.log"}


def report(stage, options, kill):
    workers = "two workers" if options else "one process"
    print(
        f"{stage}, {workers}: {kill.victim} after {kill.after_seconds:.1f} s,",
        f"{'hit' if kill.is_hit else 'missed'}, status {kill.status}",
        file=sys.stderr,
        flush=True,
    )

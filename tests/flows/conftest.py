"""A tiny configuration with its files, and the folder of the checkout."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
TINY = {
    "name": "tiny",
    "vocabulary": {"size": 120},
    "records": {"sequence_length": 32, "max_predictions": 5, "duplication": 2, "held_out_fraction": 0.2, "shards": 1},
    "model": {"size": "tiny", "num_layers": 1, "hidden_dim": 16, "num_heads": 2, "intermediate_dim": 32},
    "pretraining": {
        "batch_size": 4,
        "total_steps": 4,
        "warmup_steps": 1,
        "log_every_steps": 2,
        "evaluate_every_steps": 4,
        "evaluate_instances": 4,
        "checkpoint_every_steps": 2,
    },
    "finetuning": {"batch_size": 4, "epochs": 1, "random_max_epochs": 2, "sequence_length": 32, "seeds": [1]},
}
SENTENCES = (
    "the {0} sees the {1} in the old house.",
    "a {1} runs to the {0} and sleeps.",
    "every {0} has a {1} of its own.",
    "no {1} ever ate the {0} at night.",
    "then the {0} and the {1} went home.",
)
WORDS = ("cat", "dog", "bird", "horse", "mouse", "snake", "wolf", "goat")


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[Path]:
    """Run the one server of Prefect's test harness, and yield its database.

    Imported late, since most tests here do not need it. It registers no blocks: that takes it seconds.
    """
    from prefect.settings import PREFECT_SERVER_DATABASE_CONNECTION_URL as DATABASE
    from prefect.settings import PREFECT_SERVER_REGISTER_BLOCKS_ON_START as BLOCKS
    from prefect.settings import temporary_settings
    from prefect.testing.utilities import prefect_test_harness

    with temporary_settings({BLOCKS: False}), prefect_test_harness(server_startup_timeout=PATIENCE_SECONDS):
        yield Path(DATABASE.value().split("///", 1)[1])


@pytest.fixture
def tiny_config(tmp_path: Path) -> Path:
    return write_tiny_config(tmp_path)


def write_tiny_config(tmp_path: Path) -> Path:
    """Write a configuration whose stages take seconds, its paths relative to its own folder, and return its path."""
    pairs = [(first, second) for first in WORDS for second in WORDS if first != second]
    documents = ["\n".join(line.format(*pair) for line in SENTENCES) for pair in pairs]
    (tmp_path / "corpus.txt").write_text("\n\n".join(documents) + "\n")
    for table, part in (("train.tsv", pairs[::2]), ("dev.tsv", pairs[1::2])):
        rows = [f"{SENTENCES[number % 2].format(*pair)}\t{number % 2}" for number, pair in enumerate(part)]
        (tmp_path / table).write_text("\n".join(["text\tlabel", *rows]) + "\n")
    values = TINY | {
        "runs": "runs",
        "corpus": {"input": ["corpus.txt"], "lines": "sentences"},
        "task": {"name": "order", "train": "train.tsv", "dev": "dev.tsv"},
    }
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(values))
    return path

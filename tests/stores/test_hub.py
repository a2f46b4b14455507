"""Models of the Hub are fetched once, by name and revision, and what cannot be is one line."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands import assert_refused
from tests.commands import kbf as run
from tests.hub_model import write_hub_model
from tests.hub_server import COMMIT, serving_hub
from tests.patience import PATIENCE_SECONDS

pytest.importorskip("huggingface_hub", reason="it fetches")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_hub_model(tmp_path_factory.mktemp("hub") / "model")


@pytest.fixture
def hub(model, tmp_path):
    pickled = tmp_path / "pickled"
    shutil.copytree(model, pickled)
    (pickled / "model.safetensors").unlink()
    with serving_hub({"tiny/bert": model, "tiny/pickled": pickled}) as hub:
        yield {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_ETAG_TIMEOUT": "2"}, hub.asked


def convert(address, to, environment, *more):
    return run("convert", address, to, "--format", "tensorflow", *more, environment=environment)


@pytest.mark.slow
def test_model_is_fetched_once_and_then_found_without_the_hub(hub, tmp_path):
    environment, asked = hub
    status, output, error = convert("hf://tiny/bert", tmp_path / "one", environment)
    assert status == 0, error
    assert "BertModel, 21 tensors" in output
    fetched = {path.rpartition("/")[2] for path in asked if "/resolve/" in path}
    assert fetched == {"config.json", "model.safetensors", "vocab.txt", "tokenizer_config.json"}
    asked.clear()
    status, _, error = convert("hf://tiny/bert@v1", tmp_path / "two", environment)
    assert status == 0, error
    assert not [path for path in asked if path.endswith("model.safetensors")]  # the same commit
    asked.clear()
    offline = environment | {"HF_HUB_OFFLINE": "1"}
    status, _, error = convert(f"hf://tiny/bert@{COMMIT}", tmp_path / "three", offline)
    assert status == 0 and not asked, error


REFUSED = {
    "hf://tiny/missing": "not there, or private",
    "hf://tiny/gated": "must be asked for",
    "hf://tiny/bert@v9": "no such revision",
    "hf://tiny/pickled": "must have safetensors",
    "hf://": "must be hf://org/name",
    "hf://a/b/c": "must be hf://org/name",
    "hf://-tiny-/be rt": "no name of a model",
    "hf://tiny/broken": "the Hub did not answer",
}
FETCH_ALL = """
import sys
from keras_bert_flow.stores.fetching import fetch
for address in sys.argv[1:]:
    try:
        print(fetch(address))
    except (ValueError, OSError) as error:
        print(type(error).__name__, error)
"""


def test_what_cannot_be_fetched_is_one_line(hub):
    """One process asks for all: the library looks at its environment once."""
    command = [sys.executable, "-c", FETCH_ALL, *REFUSED]
    environment = os.environ | hub[0] | {"PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == len(REFUSED), done.stdout
    for line, (address, words) in zip(lines, REFUSED.items(), strict=True):
        assert words in line and f"Received: {address}" in line


def test_hub_that_is_not_reached_is_one_line(hub, tmp_path):
    done = convert("hf://tiny/bert", tmp_path / "out", hub[0] | {"HF_ENDPOINT": "http://127.0.0.1:9"})
    assert_refused(done, "the Hub did not answer")
    assert not (tmp_path / "out").exists()

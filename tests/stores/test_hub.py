"""Models of the Hub are fetched once, by name and revision, and what cannot be is one line."""

import shutil

import pytest

from tests.commands import assert_refused
from tests.commands import kbf as run
from tests.hub_server import COMMIT, serving_hub

pytest.importorskip("huggingface_hub", reason="it fetches")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Make a model directory without Keras: a checkpoint of few numbers."""
    import json

    import numpy as np

    from keras_bert_flow.conversion.codecs.safetensors_file import write_tensors
    from keras_bert_flow.conversion.directory_files import describe_vocabulary
    from keras_bert_flow.conversion.hf_config import read_shape
    from keras_bert_flow.conversion.tables.registry import find_table

    folder = tmp_path_factory.mktemp("hub") / "model"
    folder.mkdir()
    table = find_table("bert")
    config = {"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 8, "num_hidden_layers": 1}
    config |= {"num_attention_heads": 1, "hidden_size": 4, "intermediate_size": 6, "max_position_embeddings": 8}
    (folder / "config.json").write_text(json.dumps(config))
    shape = read_shape(config, "config.json")
    sizes = {name: tuple(getattr(shape, size) for size in sizes) for name, sizes in table.list_sizes(shape)}
    write_tensors(folder / "model.safetensors", {name: np.ones(size, "f4") for name, size in sizes.items()})
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\n")
    (folder / "tokenizer_config.json").write_bytes(describe_vocabulary(True, 8))
    for name in ("pytorch_model.bin", "tf_model.h5", "onnx/model.onnx", "flax_model.msgpack"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"not to be fetched")
    return folder


@pytest.fixture
def hub(model, tmp_path):
    pickled = tmp_path / "pickled"
    shutil.copytree(model, pickled)
    (pickled / "model.safetensors").unlink()
    with serving_hub({"tiny/bert": model, "tiny/pickled": pickled}) as (address, asked):
        yield {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_ETAG_TIMEOUT": "2"}, asked


def convert(address, to, environment, *more):
    return run("convert", address, to, "--format", "tensorflow", *more, environment=environment)


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


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("hf://tiny/missing", "not there, or private"),
        ("hf://tiny/gated", "must be asked for"),
        ("hf://tiny/bert@v9", "no such revision"),
        ("hf://tiny/pickled", "must have safetensors"),
        ("hf://", "hf://org/name"),
        ("hf://a/b/c", "hf://org/name"),
        ("hf://-tiny-/be rt", "no name of a model"),
        ("hf://tiny/broken", "must be"),
    ],
)
def test_what_cannot_be_fetched_is_one_line(hub, tmp_path, address, words):
    assert_refused(convert(address, tmp_path / "out", hub[0]), words)
    assert not (tmp_path / "out").exists()


def test_hub_that_is_not_reached_is_one_line(hub, tmp_path):
    for change in ({"HF_ENDPOINT": "http://127.0.0.1:9"}, {"HF_HUB_OFFLINE": "1"}):
        done = convert("hf://tiny/bert", tmp_path / "out", hub[0] | change)
        assert_refused(done, "the Hub was not reached")

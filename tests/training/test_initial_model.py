"""Pre-training that goes on from a model directory: its weights, an optimizer of its own, and what is refused."""

import json
import logging

import numpy as np
import pytest
from safetensors.numpy import load_file

from keras_bert_flow.conversion.model_directory import load_backbone
from keras_bert_flow.models.pretraining.masked_lm import MaskedLM
from keras_bert_flow.training.pretraining.pretrain import pretrain
from keras_bert_flow.training.pretraining.pretrainers import make_pretrainer
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records

pytestmark = pytest.mark.any_backend

STILL = {"total_steps": 1, "warmup_steps": 0, "learning_rate": 1e-12}  # too small a step for float32 to see


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    return write_tiny_records(tmp_path_factory.mktemp("initial") / "records")


@pytest.fixture(scope="module")
def first(records):
    return pretrain(make_tiny_config(), records, records.parent / "first", lambda line: None) / "model"


def tensors_of(folder):
    return load_file(folder / "model.safetensors")


def largest_change(before, after):
    return {name: float(np.abs(after[name] - values).max()) for name, values in before.items()}


def test_second_phase_begins_with_the_weights_of_the_first(records, first, tmp_path):
    output = pretrain(make_tiny_config(**STILL), records, tmp_path / "out", lambda line: None, initial_model=first)
    before, after = tensors_of(first), tensors_of(output / "model")
    assert before.keys() == after.keys()
    assert max(largest_change(before, after).values()) < 1e-9
    scores = [json.loads((folder / "metrics.json").read_text()) for folder in (first.parent, output)]
    assert scores[1]["masked_lm_loss"] == pytest.approx(scores[0]["masked_lm_loss"], rel=1e-6)
    assert scores[1]["steps"] == 1
    manifest = json.loads((output / "manifest.json").read_text())
    assert set(manifest["inputs"]) == {"records", "initial_model"}


@pytest.mark.slow
def test_killed_second_phase_ends_in_the_same_bits(records, first, tmp_path):
    class Killed(BaseException):
        pass

    def die(line):
        if line["step"] == 6:
            raise Killed

    config = make_tiny_config(total_steps=8)
    whole = pretrain(config, records, tmp_path / "whole", lambda line: None, initial_model=first)
    with pytest.raises(Killed):
        pretrain(config, records, tmp_path / "killed", die, initial_model=first)
    lines = []
    killed = pretrain(config, records, tmp_path / "killed", lines.append, initial_model=first)
    assert [line["step"] for line in lines] == [6, 8]
    files = [(folder / "model" / "model.safetensors").read_bytes() for folder in (whole, killed)]
    assert files[0] == files[1]
    with pytest.raises(OSError, match="must be new"):  # another model to begin with is another run
        pretrain(config, records, tmp_path / "killed")


@pytest.mark.parametrize(
    ("kind", "new"),
    [
        ("encoder", ["mlm_transform/dense", "mlm_transform/layer_norm", "mlm", "nsp"]),
        ("masked_lm", ["pooler/dense", "nsp"]),
    ],
)
def test_missing_heads_are_new_and_it_says_so(records, first, tmp_path, caplog, kind, new):
    if kind == "encoder":
        model = load_backbone(first)
    else:
        model = make_pretrainer(make_tiny_config().model, 50, "mlm")
        assert isinstance(model, MaskedLM)
    model.save_to_preset(tmp_path / "start", vocabulary_path=first / "vocab.txt")
    with caplog.at_level(logging.WARNING):
        output = pretrain(
            make_tiny_config(**STILL), records, tmp_path / "out", lambda line: None, initial_model=tmp_path / "start"
        )
    (said,) = [record.getMessage() for record in caplog.records if "begin anew" in record.getMessage()]
    assert said.split(" has no weights for ")[1] == f"{', '.join(new)}, which begin anew."
    before, after = tensors_of(tmp_path / "start"), tensors_of(output / "model")
    prefix = "bert." if kind == "encoder" else ""  # a bare encoder has bare names
    changes = [np.abs(after[prefix + name] - values).max() for name, values in before.items()]
    assert max(changes) < 1e-9
    assert len(after) - len(before) == {"encoder": 7, "masked_lm": 4}[kind]


def test_checkpoint_of_transformers_is_gone_on_from(records, first, tmp_path):
    transformers = pytest.importorskip("transformers")
    shape = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 24}
    config = transformers.BertConfig(vocab_size=50, max_position_embeddings=16, **shape)
    transformers.BertForMaskedLM(config).save_pretrained(tmp_path / "start")
    (tmp_path / "start" / "vocab.txt").write_bytes((first / "vocab.txt").read_bytes())
    start = tmp_path / "start"
    output = pretrain(make_tiny_config(**STILL), records, tmp_path / "out", lambda line: None, initial_model=start)
    before, after = tensors_of(start), tensors_of(output / "model")
    assert max(np.abs(after[name] - values).max() for name, values in before.items() if name in after) < 1e-9
    assert {"cls.predictions.bias", "bert.encoder.layer.0.attention.self.query.weight"} <= before.keys() & after.keys()


def test_model_that_does_not_fit_is_refused(records, first, tmp_path):
    others = write_tiny_records(tmp_path / "others", vocabulary_size=51)
    with pytest.raises(ValueError, match="must be made with the model's tokenizer"):
        pretrain(make_tiny_config(), others, tmp_path / "out", initial_model=first)
    shape = {"num_layers": 2, "intermediate_dim": 32}
    with pytest.raises(ValueError, match=r"with num_layers=1, not 2; .*intermediate_dim=24, not 32\. Set these in"):
        pretrain(make_tiny_config(shape), records, tmp_path / "out", initial_model=first)
    with pytest.raises(FileNotFoundError):
        pretrain(make_tiny_config(), records, tmp_path / "out", initial_model=tmp_path / "absent")


def test_adapter_is_no_model_to_begin_from(records, tmp_path):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match="Training must begin from a whole model"):
        pretrain(make_tiny_config(), records, tmp_path / "out", initial_model=tmp_path)

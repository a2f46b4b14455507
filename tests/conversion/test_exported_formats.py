"""Exported models, loaded by their runtimes alone and fed by tokenizers of `transformers`, against `transformers`."""

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.export_table import HEADS
from keras_bert_flow.config.machine import CPU_INFO, read_fields
from keras_bert_flow.export.comparison import MOST_INT8_ERROR
from keras_bert_flow.export.export_model import export_model
from keras_bert_flow.export.format import FORMATS, find_export_format
from tests.oracles.exported_models import save_kind
from tests.oracles.exported_runtimes import load_exported
from tests.prediction.models import LONGEST

BACKEND = os.environ.get("KERAS_BACKEND", "jax")
WRITTEN = [name for name in FORMATS if BACKEND in find_export_format(name).packages]
TEXTS = ["the cat is w1 .", "paris", "is the cat the paris of w3 w4 w5 ?"]
DOCS = Path(__file__).parents[2] / "docs" / "export.md"
TOLERANCE = 1e-5  # of `transformers` in float32, as tests/conversion/test_transformers_parity.py has it


def ask_transformers(folder, texts):
    """Return what the tokenizer makes of pairs of texts, and the logits of each token."""
    import torch
    from transformers import AutoModelForTokenClassification, AutoTokenizer

    encoded = AutoTokenizer.from_pretrained(folder)(texts, texts[::-1], padding=True, return_tensors="np")
    model = AutoModelForTokenClassification.from_pretrained(folder).eval()
    with torch.inference_mode():
        found = model(**{name: torch.tensor(values) for name, values in encoded.items()})
    return dict(encoded), found.logits.numpy()


@pytest.fixture(scope="module", params=WRITTEN)
def tagger(request, tmp_path_factory):
    """A model directory, what it was exported to, and its format; writing takes seconds."""
    folder = tmp_path_factory.mktemp(request.param)
    model = save_kind("token_classification", folder)
    export_model(model, folder / "served", request.param)
    return model, folder / "served", request.param


@pytest.mark.slow
@pytest.mark.first_form
@pytest.mark.slow_on_tensorflow
def test_exported_model_tags_as_transformers_does(tagger):
    model, exported, format = tagger
    description, run = json.loads((exported / "export.json").read_text()), load_exported(exported, format)
    for texts in (TEXTS, TEXTS[:1]):
        inputs, wanted = ask_transformers(model, texts)
        assert inputs.keys() == description["inputs"].keys()
        found = run(inputs)
        assert found.keys() == {"logits"} == description["outputs"].keys()
        np.testing.assert_allclose(found["logits"], wanted, rtol=0, atol=TOLERANCE)


@pytest.mark.slow
@pytest.mark.first_form
def test_texts_beyond_the_last_position_are_refused(tagger):
    run = load_exported(*tagger[1:])
    for length in (LONGEST, LONGEST + 1):
        inputs = {name: np.ones((2, length), np.int64) for name in ("input_ids", "token_type_ids", "attention_mask")}
        if length == LONGEST:
            assert run(inputs)["logits"].shape == (2, LONGEST, 3)
        else:
            with pytest.raises(Exception, match="."):  # each runtime has its own
                run(inputs)


@pytest.mark.slow
def test_documented_loading_works(tagger, monkeypatch):
    model, exported, format = tagger
    scripts = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    (loading,) = [script for script in scripts if find_export_format(format).file in script and "inputs" in script]
    monkeypatch.chdir(exported.parent)
    values = {}
    exec(scripts[0] + loading, values)
    assert values["logits"].shape == (2, values["inputs"]["input_ids"].shape[1], 3)
    np.testing.assert_array_equal(values["logits"], load_exported(exported, format)(values["inputs"])["logits"])


def has_int8_products() -> bool:
    """Whether this processor multiplies int8 without loss (VNNI), in Linux' words."""
    return any("vnni" in flags for flags in read_fields(CPU_INFO, "flags"))


@pytest.mark.parametrize("format", [name for name in WRITTEN if find_export_format(name).has_int8])
@pytest.mark.slow
def test_int8_is_smaller_and_predicts_the_same(format, tmp_path):
    model = save_kind("classification", tmp_path, hidden_dim=192, intermediate_dim=512)
    is_exact = format != "onnx" or has_int8_products()
    most = 0.1 if is_exact else 1.0  # random weights are undecided
    done = export_model(model, tmp_path / "out", format, int8=True, max_changed=most)
    name = find_export_format(format).file
    # Kernels of 4 bytes a number become 1; embeddings, norms and the graph stay as they are.
    assert (tmp_path / "out" / name).stat().st_size < 0.5 * (model / "model.safetensors").stat().st_size
    if not is_exact:
        pytest.skip("onnxruntime's sums of int8 products may overflow on this processor: docs/export.md")
    assert 1e-4 < done.error < MOST_INT8_ERROR / 2 and done.agreement > 0.9
    assert json.loads((tmp_path / "out" / "export.json").read_text())["int8"] is True
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        *("config.json", "export.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt", name)
    }


@pytest.mark.slow  # minutes
@pytest.mark.parametrize("kind", HEADS)
@pytest.mark.parametrize("format", WRITTEN)
def test_every_kind_is_exported(format, kind, tmp_path):
    model = save_kind(kind, tmp_path)
    done = export_model(model, tmp_path / "out", format, asked_as="fill_mask" if kind == "fill_mask" else None)
    assert done.texts > 32 and done.largest_difference < 1e-5 and done.agreement in (None, 1)
    assert json.loads((tmp_path / "out" / "export.json").read_text())["kind"] == kind


@pytest.mark.slow
@pytest.mark.parametrize("format", WRITTEN)
@pytest.mark.parametrize(
    "family", ["roberta", "distilbert", "albert", "deberta-v2", "electra", "mobilebert", "modernbert"]
)
def test_every_family_is_exported(format, family, tmp_path):
    sizes = {"embedding_dim": 12} if family == "albert" else {}
    model = save_kind("token_classification", tmp_path, family=family, **sizes)
    export_model(model, tmp_path / "out", format)
    inputs = json.loads((tmp_path / "out" / "export.json").read_text())["inputs"]
    assert ("token_type_ids" in inputs) == (family in ("albert", "electra", "mobilebert"))

"""Folders that others made hold tensors under other names, twice, or of layers that config.json does not mention."""

import json
import logging
import shutil

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_bert_flow as kbf
from keras_bert_flow.conversion.convert import convert
from keras_bert_flow.models.pretraining.masked_lm import make_vocabulary_model
from tests.contracts import CLASSES, randomise
from tests.conversion.test_families import make_backbone
from tests.oracles.small_bert import make_inputs
from tests.oracles.tiny_model import check_directory

torch = pytest.importorskip("torch", reason="the reference needs torch")
transformers = pytest.importorskip("transformers", reason="the reference needs transformers")

TOLERANCE = 5e-5  # float32 rounding (6e-8) of values up to 50 through sums of up to 40 terms
TABLES = {  # of the masked-LM head: its layer with the table, and the one with the bias if that is another
    "bert": ("cls.predictions.decoder", "cls.predictions"),
    "albert": ("predictions.decoder", "predictions"),
    "deberta-v2": ("cls.predictions.decoder", "cls.predictions"),
    "distilbert": ("vocab_projector", None),
    "electra": ("generator_lm_head", None),
    "mobilebert": ("cls.predictions.decoder", "cls.predictions"),
    "modernbert": ("decoder", None),
    "roberta": ("lm_head.decoder", "lm_head"),
}
SLOW = {"mobilebert", "deberta-v2"}
FAMILIES = [pytest.param(family, marks=pytest.mark.slow) if family in SLOW else family for family in CLASSES]
pytestmark = pytest.mark.any_backend


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Return a function that gives the folder of a masked LM of a family."""
    folders = {}

    def make(family):
        if family not in folders:
            folders[family] = tmp_path_factory.mktemp(family)
            randomise(kbf.MaskedLM(make_backbone(family, use_pooler=False))).save_to_preset(folders[family])
        return folders[family]

    return make


def copy(folder, to, edit=lambda tensors: tensors, **fields):
    """Copy a folder with its tensors, a dictionary of copies, and its config.json changed."""
    shutil.copytree(folder, to)
    tensors = {name: value.copy() for name, value in load_file(to / "model.safetensors").items()}
    save_file(edit(tensors), to / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((to / "config.json").read_text()) | fields
    (to / "config.json").write_text(json.dumps(config))
    return to


def see_logits(folder):
    inputs = {name: value[:2] for name, value in make_inputs().items()}
    inputs |= {"segment_ids": np.zeros_like(inputs["segment_ids"])}
    # RoBERTa counts positions by the padding token, and MobileBERT reads it next to a text
    inputs["token_ids"] = np.where(inputs["padding_mask"] == 1, 1 + inputs["token_ids"] % 49, 0).astype("int32")
    logits = make_vocabulary_model(kbf.MaskedLM.from_preset(folder))(inputs)
    real = inputs["padding_mask"].astype(bool)
    return inputs, keras.ops.convert_to_numpy(logits)[real]


def compare_with_reference(family, folder):
    """Assert that our logits are those of `transformers`, and return them."""
    inputs, ours = see_logits(folder)
    reference = getattr(transformers, CLASSES[family] + "ForMaskedLM").from_pretrained(folder).eval()
    ids, mask = (torch.tensor(inputs[name]).long() for name in ("token_ids", "padding_mask"))
    with torch.no_grad():
        found = reference(input_ids=ids, attention_mask=mask)
    np.testing.assert_allclose(ours, found.logits.numpy()[inputs["padding_mask"].astype(bool)], atol=TOLERANCE)
    return ours


def prefix_of(family):
    return {"modernbert": "model.embeddings.tok_embeddings.weight"}.get(
        family, f"{family.removesuffix('-v2')}.embeddings.word_embeddings.weight"
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_table_and_bias_of_the_head_are_read_without_the_flag(made, tmp_path, family):
    own, bias = TABLES[family]
    before = see_logits(made(family))[1]

    def untie(tensors):
        rng = np.random.default_rng(0)
        rows = tensors[prefix_of(family)]
        tensors[f"{own}.weight"] = rows + rng.normal(size=rows.shape).astype("float32")
        if bias:
            tensors[f"{own}.bias"] = tensors[f"{bias}.bias"] + 1 + np.arange(len(rows), dtype="float32") / 9
        return tensors

    folder = copy(made(family), tmp_path / "model", untie)
    assert abs(compare_with_reference(family, folder) - before).max() > 1
    kbf.MaskedLM.from_preset(folder).save_to_preset(tmp_path / "again")
    compare_with_reference(family, tmp_path / "again")


@pytest.mark.parametrize("family", FAMILIES)
def test_tied_tensors_are_read_under_either_name(made, tmp_path, family):
    own, bias = TABLES[family]
    before = see_logits(made(family))[1]

    def move(tensors):
        tensors[f"{own}.weight"] = tensors.pop(prefix_of(family))
        if bias:
            tensors[f"{own}.bias"] = tensors.pop(f"{bias}.bias")
        return tensors

    folder = copy(made(family), tmp_path / "model", move)
    np.testing.assert_array_equal(compare_with_reference(family, folder), before)
    done = convert(folder, tmp_path / "converted")
    assert any(f"read from {own}.weight" in remark for remark in done.remarks)
    np.testing.assert_array_equal(see_logits(tmp_path / "converted")[1], before)


@pytest.mark.parametrize("family", [family for family, (_, bias) in TABLES.items() if bias])
def test_bias_beside_the_table_counts(made, tmp_path, family):
    own, bias = TABLES[family]
    folder = copy(made(family), tmp_path / "model", lambda t: t | {f"{own}.bias": t[f"{bias}.bias"][::-1].copy()})
    compare_with_reference(family, folder)


@pytest.mark.parametrize("prefix", ["module.", "model.", "_orig_mod.module.", "bert.model."])
def test_prefixes_of_wrappers_are_left_out(made, tmp_path, prefix):
    folder = copy(made("bert"), tmp_path / "model", lambda t: {prefix + name: value for name, value in t.items()})
    np.testing.assert_array_equal(see_logits(folder)[1], see_logits(made("bert"))[1])


def test_unknown_prefix_is_named(made, tmp_path):
    folder = copy(made("bert"), tmp_path / "model", lambda t: {f"student.{name}": value for name, value in t.items()})
    with pytest.raises(
        ValueError, match=r"Received: `student\.bert\.embeddings\.word_embeddings\.weight`, with a pref"
    ):
        check_directory(folder)


REFUSED = {
    "deeper": (
        {"num_hidden_layers": 1},
        {},
        r"`encoder\.layer\.1\..*` and 13 more, .* 1 layers.*num_hidden_layers to 2",
    ),
    "unknown": (
        {},
        {"bert.encoder.layer.0.attention.self.distance_embedding.weight": 4},
        r"distance_embedding\.weight`",
    ),
    "half": ({}, {"classifier.bias": 3}, r"`classifier\.bias` without `classifier\.weight`"),
    "quantised": (
        {"quantization_config": {"quant_method": "fp8"}},
        {},
        r"quantization_config=\{'quant_method': 'fp8'\}",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_read_is_refused_by_name(made, tmp_path, case):
    fields, extra, message = REFUSED[case]
    rows = {name: np.ones(size, "float32") for name, size in extra.items()}
    folder = copy(made("bert"), tmp_path / "model", lambda tensors: tensors | rows, **fields)
    for read in (check_directory, kbf.MaskedLM.from_preset):
        with pytest.raises(ValueError, match=message) as refusal:
            read(folder)
        assert "\n" not in str(refusal.value)


DTYPES = {
    "F8_E4M3": lambda rows: rows.to(torch.float8_e4m3fn),
    "I8": lambda rows: rows.to(torch.int8),
    "U8": lambda rows: rows.to(torch.uint8).reshape(-1, 1),
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_quantised_weights_are_refused_by_name_and_dtype(made, tmp_path, dtype):
    from safetensors.torch import load_file as load
    from safetensors.torch import save_file as save

    folder = copy(made("bert"), tmp_path / "model")
    name = "encoder.layer.0.attention.self.query.weight"
    tensors = load(folder / "model.safetensors")
    tensors |= {f"bert.{name}": DTYPES[dtype](tensors[f"bert.{name}"]), f"bert.{name}.absmax": torch.ones(3)}
    save(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=f"floating-point numbers, .*Received: `{name}` of {dtype}"):
        check_directory(folder)


def test_tensors_of_unknown_heads_are_listed(made, tmp_path, caplog):
    extra = {f"crf.{name}": np.ones(3, "float32") for name in ("start", "end", "transitions", "weight")}
    folder = copy(made("bert"), tmp_path / "model", lambda tensors: tensors | extra)
    with caplog.at_level(logging.WARNING):
        kbf.MaskedLM.from_preset(folder)
    (line,) = [record.getMessage() for record in caplog.records if "not read" in record.getMessage()]
    names = "`crf.end`, `crf.start`, `crf.transitions` and 1 more"
    assert line == f"{folder}: 4 tensors of no head known here are not read: {names}."
    caplog.clear()
    kbf.Backbone.from_preset(made("bert"))  # without its head, which is known
    assert not caplog.records


def test_head_without_the_pooler_that_it_needs_is_refused(tmp_path):
    kbf.TextClassifier(make_backbone("bert"), 3).save_to_preset(tmp_path / "whole")
    folder = copy(tmp_path / "whole", tmp_path / "model", lambda t: {k: v for k, v in t.items() if ".pooler." not in k})
    with pytest.raises(ValueError, match=r"no tensor `pooler\.dense\.weight`, from which its classifier was trained"):
        kbf.TextClassifier.from_preset(folder)
    assert kbf.TextClassifier.from_preset(folder, num_classes=3, new_head=True).num_classes == 3


def test_index_that_names_an_absent_tensor_is_refused(made, tmp_path):
    folder = copy(made("bert"), tmp_path / "model")
    names = [*load_file(folder / "model.safetensors"), "classifier.weight"]
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    index = {"weight_map": dict.fromkeys(names, "model-1.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match=r"classifier\.weight, which is not in model-1\.safetensors"):
        check_directory(folder)

"""Adapters: `peft` on `transformers` computes what our model does, and each reads what the other has written."""

from pathlib import Path

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.conversion.adapters import ADAPTER_FILE, name_base
from keras_bert_flow.conversion.convert import convert
from keras_bert_flow.conversion.model_directory import load_task_model
from tests.contracts import CLASSES
from tests.oracles import numpy_bert
from tests.oracles.adapters import ask, ask_reference, edit_config, make_ids, save_adapter, save_base
from tests.oracles.task_models import CASES
from tests.oracles.tiny_model import write_tiny_model

torch = pytest.importorskip("torch", reason="the reference needs torch")
transformers = pytest.importorskip("transformers", reason="the reference needs transformers")
peft = pytest.importorskip("peft", reason="the reference needs peft")

TOLERANCE = 1e-5  # float32 rounding (6e-8) of values up to 10 through sums of up to 40 terms


@pytest.mark.parametrize("kind", ["classification", "token_classification"])
@pytest.mark.parametrize("family", CLASSES)
@pytest.mark.slow_compiled
@pytest.mark.first_form
def test_peft_computes_the_same(family, kind, tmp_path, recwarn):
    base = save_base(tmp_path / "base", family)
    ours = save_adapter(base, tmp_path / "adapter", kind)
    head = {"classification": "ForSequenceClassification", "token_classification": "ForTokenClassification"}[kind]
    model = getattr(transformers, CLASSES[family] + head).from_pretrained(base, num_labels=3)
    adapted = peft.PeftModel.from_pretrained(model, tmp_path / "adapter")
    assert not [warning for warning in recwarn if "missing" in str(warning.message)]
    is_real = make_ids()["padding_mask"] == 1
    rows = is_real.any(axis=1) if kind == "classification" else is_real
    np.testing.assert_allclose(ask(ours)[rows], ask_reference(adapted)[rows], atol=TOLERANCE, rtol=TOLERANCE)
    again = load_task_model(kind, tmp_path / "adapter", needs_head=True)
    assert again.labels == ("a", "b", "c")
    np.testing.assert_allclose(ask(again), ask(ours), atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.any_backend
def test_peft_finds_the_model_of_an_adapter(tmp_path):
    base = save_base(tmp_path / "base")
    ours = save_adapter(base, tmp_path / "adapter")
    model = peft.AutoPeftModelForSequenceClassification.from_pretrained(tmp_path / "adapter", num_labels=3)
    np.testing.assert_allclose(ask(ours)[:3], ask_reference(model)[:3], atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.any_backend
@pytest.mark.parametrize("kind", [kind for kind in CASES if kind not in ("embedding", "cosine_pairs")])
@pytest.mark.first_form
def test_adapter_of_each_kind_is_read_again(kind, tmp_path):
    base = save_base(tmp_path / "base")
    labels = {"labels": ["a", "b", "c"]} if kind in ("classification", "multi_label", "token_classification") else {}
    model = load_task_model(kind, base, **labels)
    model.backbone.enable_lora(3, targets=("query", "feed_forward"))
    numpy_bert.randomise_weights(model, seed=4)
    base_weights = {v.path: keras.ops.convert_to_numpy(v) for v in load_task_model(kind, base, **labels).weights}
    for variable in model.non_trainable_variables:
        if variable.path in base_weights:
            variable.assign(base_weights[variable.path])
    model.save_to_preset(tmp_path / "adapter", adapter_of=base)
    again = load_task_model(kind, tmp_path / "adapter", needs_head=kind != "sentence_embedding")
    model.save_to_preset(tmp_path / "merged")
    whole = load_task_model(kind, tmp_path / "merged")
    for ours, theirs in zip(again.weights, whole.weights, strict=True):
        # The product of two matrices of rank 3 in another order
        np.testing.assert_allclose(*map(keras.ops.convert_to_numpy, (ours, theirs)), atol=1e-6, rtol=1e-6)


@pytest.mark.any_backend
def test_adapter_of_peft_is_read(tmp_path):
    base = save_base(tmp_path / "base")
    model = transformers.BertForSequenceClassification.from_pretrained(base, num_labels=4)
    settings = peft.LoraConfig("SEQ_CLS", r=3, lora_alpha=7, target_modules=["key", "dense"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, settings)
    adapted.save_pretrained(tmp_path / "adapter")
    assert not (tmp_path / "adapter" / "config.json").exists()
    ours = kbf.TextClassifier.from_preset(tmp_path / "adapter")
    np.testing.assert_allclose(ask(ours)[:3], ask_reference(adapted)[:3], atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.any_backend
@pytest.mark.parametrize("initial", ["gaussian", "orthogonal"])
def test_initial_values_that_leave_the_base_alone_are_read(tmp_path, initial):
    base = save_base(tmp_path / "base")
    model = transformers.BertForSequenceClassification.from_pretrained(base, num_labels=4)
    settings = peft.LoraConfig("SEQ_CLS", r=2, target_modules=["query"], init_lora_weights=initial)
    adapted = peft.get_peft_model(model, settings)
    with torch.no_grad():
        for name, matrix in adapted.named_parameters():
            if "lora_" in name:
                matrix.data = torch.randn(matrix.shape, generator=torch.Generator().manual_seed(1))
    adapted.save_pretrained(tmp_path / "adapter")
    again = transformers.BertForSequenceClassification.from_pretrained(base, num_labels=4)
    again = peft.PeftModel.from_pretrained(again, tmp_path / "adapter")  # initialises as the adapter says
    ours = kbf.TextClassifier.from_preset(tmp_path / "adapter")
    np.testing.assert_allclose(ask(ours)[:3], ask_reference(again)[:3], atol=TOLERANCE, rtol=TOLERANCE)


@pytest.mark.any_backend
@pytest.mark.parametrize(
    "options", [{"init_lora_weights": "pissa"}, {"trainable_token_indices": {"word_embeddings": [3]}}]
)
def test_adapters_of_peft_that_change_the_base_are_refused(tmp_path, options):
    base = save_base(tmp_path / "base")
    model = transformers.BertForSequenceClassification.from_pretrained(base, num_labels=4)
    settings = peft.LoraConfig("SEQ_CLS", r=2, target_modules=["query"], **options)
    peft.get_peft_model(model, settings).save_pretrained(tmp_path / "adapter")
    with pytest.raises(ValueError, match=f"`{next(iter(options))}` must be"):
        kbf.TextClassifier.from_preset(tmp_path / "adapter")
    edit_config(tmp_path / "adapter", **dict.fromkeys(options))
    if "trainable_token_indices" in options:  # the tensor alone is enough
        with pytest.raises(ValueError, match=r"word_embeddings\..*token_adapter.*which a BERT"):
            kbf.TextClassifier.from_preset(tmp_path / "adapter")


@pytest.mark.any_backend
def test_adapter_of_peft_is_asked_with_the_tokenizer_of_its_base(tmp_path):
    base = write_tiny_model(tmp_path / "base", labels=("x", "y", "z"))
    model = transformers.BertForSequenceClassification.from_pretrained(base, num_labels=3)
    settings = peft.LoraConfig("SEQ_CLS", r=2, target_modules=["query"], init_lora_weights=False)
    peft.get_peft_model(model, settings).save_pretrained(tmp_path / "adapter")
    convert(tmp_path / "adapter", tmp_path / "merged")
    asked, merged = (kbf.load(tmp_path / name).predict(["a film"]) for name in ("adapter", "merged"))
    assert asked == merged and asked[0]["label"] in ("x", "y", "z")


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("fields", "error", "message"),
    [
        ({"peft_type": "IA3"}, ValueError, "`peft_type` must be 'LORA'. Received: 'IA3'"),
        ({"use_dora": True}, ValueError, "`use_dora` must be False"),
        ({"rank_pattern": {"query|key": 4}}, ValueError, "`rank_pattern` must be numbers by names of modules"),
        ({"alpha_pattern": {"query": 0}}, ValueError, "`r` and `lora_alpha` above 0"),
        ({"init_lora_weights": "pissa"}, ValueError, "`init_lora_weights` must be True. Received: 'pissa'"),
        ({"init_lora_weights": "olora"}, ValueError, "`init_lora_weights` must be True. Received: 'olora'"),
        ({"trainable_token_indices": {"word_embeddings": [3]}}, ValueError, "`trainable_token_indices` must be None"),
        ({"a_later_field": {"of": "peft"}}, ValueError, "`a_later_field` must be None. Received: {'of': 'peft'}"),
        ({"r": 0}, ValueError, "`r` and `lora_alpha` above 0"),
        ({"r": "2"}, ValueError, "`r` and `lora_alpha` above 0"),
        ({"base_model_name_or_path": None}, ValueError, "must have base_model_name_or_path"),
        (
            {"base_model_name_or_path": "/not/there"},
            FileNotFoundError,
            "with its model. .*/not/there, which is not",
        ),
    ],
)
def test_unusable_settings_are_one_line(tmp_path, fields, error, message):
    save_adapter(save_base(tmp_path / "base"), tmp_path / "adapter")
    edit_config(tmp_path / "adapter", **fields)
    with pytest.raises(error, match=message) as caught:
        kbf.TextClassifier.from_preset(tmp_path / "adapter")
    assert "\n" not in str(caught.value)


@pytest.mark.any_backend
def test_damaged_adapters_are_one_line(tmp_path):
    base, adapter = save_base(tmp_path / "base"), tmp_path / "adapter"
    save_adapter(base, adapter)
    from safetensors.numpy import load_file, save_file

    tensors = load_file(adapter / ADAPTER_FILE)
    first = next(name for name in tensors if "lora_A" in name)
    damages = {
        "of the shape None": {name: value for name, value in tensors.items() if name != first},
        r"by matrices for \(24, 25\), of \(24, 24\)": tensors | {first: np.zeros((2, 25), "float32")},
        "of a kind that is not read": tensors | {first.replace("lora_A.weight", "lora_magnitude_vector"): np.ones(3)},
        "of the encoder or of a head. Received: `foreign.weight`": tensors
        | {"base_model.model.foreign.weight": np.ones(3)},
        "must be finite": tensors | {first: np.full_like(tensors[first], np.nan)},
    }
    for message, content in damages.items():
        save_file(content, adapter / ADAPTER_FILE)
        with pytest.raises(ValueError, match=message) as caught:
            kbf.TextClassifier.from_preset(adapter)
        assert "\n" not in str(caught.value)
    (adapter / ADAPTER_FILE).unlink()
    with pytest.raises(FileNotFoundError, match="An adapter must hold adapter_model.safetensors"):
        kbf.TextClassifier.from_preset(adapter)


@pytest.mark.any_backend
@pytest.mark.parametrize("enable", [lambda m: None, lambda m: m.get_layer("classifier").enable_lora(2)])
def test_model_without_lora_is_no_adapter(tmp_path, enable):
    base = save_base(tmp_path / "base")
    model = load_task_model("classification", base, labels=["a", "b"])
    enable(model)
    with pytest.raises(ValueError, match="An adapter must be of LoRA that `Backbone.enable_lora` has made"):
        model.save_to_preset(tmp_path / "adapter", adapter_of=base)
    assert not (tmp_path / "adapter").exists()


@pytest.mark.any_backend
def test_adapter_is_not_written_over_a_model(tmp_path):
    base = save_base(tmp_path / "base")
    before = (base / "config.json").read_bytes()
    with pytest.raises(ValueError, match="An adapter must have a folder of its own. Received: .*base, of a model"):
        save_adapter(base, base)
    assert (base / "config.json").read_bytes() == before


@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("address", "name", "revision"),
    [
        ("hf://org/name@v1", "org/name", "v1"),
        (Path("hf://org/name"), "org/name", None),
        ("/cache/models--org--name/snapshots/0a1b", "org/name", "0a1b"),
        ("gs://bucket/model", "gs://bucket/model", None),
        ("/models/mine", "/models/mine", None),
    ],
)
def test_models_are_named_as_peft_finds_them(address, name, revision):
    assert name_base(address) == {"base_model_name_or_path": name, "revision": revision}

"""`kbf convert` merges adapters into their models, as numpy and `peft` do, into files that `transformers` reads."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_bert_flow as kbf
from keras_bert_flow.conversion.adapters import ADAPTER_CONFIG, ADAPTER_FILE
from keras_bert_flow.conversion.convert import convert
from keras_bert_flow.conversion.model_directory import load_task_model, save_model_directory
from tests.commands import assert_refused
from tests.commands import kbf as run
from tests.oracles import numpy_bert
from tests.oracles.adapters import ask, ask_reference, edit_config, save_adapter, save_base
from tests.oracles.small_bert import SMALL

transformers = pytest.importorskip("transformers", reason="the reference needs transformers")

pytestmark = pytest.mark.any_backend

HEADS = {"classification": "SequenceClassification", "token_classification": "TokenClassification"}
CASES = [
    ("bert", "token_classification"),
    *((family, "classification") for family in ("albert", "distilbert", "electra", "roberta")),
]
TOLERANCE = 1e-5  # float32 rounding (6e-8) of values up to 10 through sums of up to 40 terms


def read(folder):
    return load_file(folder / "model.safetensors")


@pytest.fixture
def vocabulary(tmp_path):
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(45))]) + "\n")
    return path


def test_weights_are_those_of_the_base_and_the_scaled_product(tmp_path):
    base = save_base(tmp_path / "base")
    save_adapter(base, tmp_path / "adapter")
    done = convert(tmp_path / "adapter", tmp_path / "whole")
    merged, adapter = read(tmp_path / "whole"), load_file(tmp_path / "adapter" / ADAPTER_FILE)
    weights = {f"bert.{name}": value for name, value in read(base).items()}
    assert len(merged) == len(weights) + 2  # a classifier
    pairs = 0
    for name, value in merged.items():
        first = adapter.get(f"base_model.model.{name.removesuffix('.weight')}.lora_A.weight")
        if first is not None:
            second = adapter[f"base_model.model.{name.removesuffix('.weight')}.lora_B.weight"]
            wanted = weights[name].astype("float64") + 5.0 / 2 * (second.astype("float64") @ first)
            np.testing.assert_allclose(value, wanted, atol=TOLERANCE, rtol=TOLERANCE)
            assert np.abs(wanted - weights[name]).max() > 0.1
            pairs += 1
        else:
            kept = adapter.get(f"base_model.model.{name}", weights.get(name))
            np.testing.assert_array_equal(value, kept, err_msg=name)
    assert pairs == 12
    layers = "attention.output.dense, attention.self.key, attention.self.query, attention.self.value, "
    assert done.remarks == (
        f"merged into {base}: {layers}intermediate.dense, output.dense; 12 weights, rank 2, scaling 2.5",
        "classifier, pooler.dense taken whole from the adapter",
    )
    assert (done.source, done.architecture) == ("adapter", "BertForSequenceClassification")


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_transformers_reads_what_peft_computes(family, kind, tmp_path):
    peft = pytest.importorskip("peft", reason="the reference needs peft")
    base = save_base(tmp_path / "base", family)
    ours = save_adapter(base, tmp_path / "adapter", kind)
    convert(tmp_path / "adapter", tmp_path / "whole")
    loader = getattr(transformers, f"AutoModelFor{HEADS[kind]}")
    whole, report = loader.from_pretrained(tmp_path / "whole", output_loading_info=True)
    assert not report["missing_keys"] and not report["mismatched_keys"]
    assert whole.config.id2label == {0: "a", 1: "b", 2: "c"}
    adapted = peft.PeftModel.from_pretrained(loader.from_pretrained(base, num_labels=3), tmp_path / "adapter")
    np.testing.assert_allclose(ask_reference(whole)[:3], ask_reference(adapted)[:3], atol=TOLERANCE, rtol=TOLERANCE)
    again = load_task_model(kind, tmp_path / "whole", needs_head=True)
    np.testing.assert_allclose(ask(again), ask(ours), atol=TOLERANCE, rtol=TOLERANCE)


def test_adapter_of_peft_becomes_a_classifier_without_the_head_of_its_base(tmp_path, vocabulary):
    peft = pytest.importorskip("peft", reason="the reference needs peft")
    pretrainer = kbf.BertPretrainer(kbf.BertBackbone(**SMALL))
    numpy_bert.randomise_weights(pretrainer, 1)
    save_model_directory(pretrainer, tmp_path / "base", vocabulary)
    model = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "base", num_labels=4)
    settings = peft.LoraConfig("SEQ_CLS", r=3, lora_alpha=7, target_modules=["key", "dense"], init_lora_weights=False)
    adapted = peft.get_peft_model(model, settings)
    adapted.save_pretrained(tmp_path / "adapter")
    done = convert(tmp_path / "adapter", tmp_path / "whole")
    assert "cls left out, of the head of the base" in done.remarks
    assert "README.md left out, which is of the adapter alone" in done.remarks
    assert not any(name.startswith("cls.") for name in read(tmp_path / "whole"))
    assert {path.name for path in (tmp_path / "whole").iterdir()} >= {"vocab.txt", "tokenizer.json"}
    whole, report = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "whole", output_loading_info=True
    )
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    np.testing.assert_allclose(ask_reference(whole)[:3], ask_reference(adapted)[:3], atol=TOLERANCE, rtol=TOLERANCE)
    assert kbf.TextClassifier.from_preset(tmp_path / "whole").num_classes == 4


@pytest.mark.parametrize("format", ["tensorflow", "kerashub"])
def test_adapter_is_written_in_other_formats(tmp_path, vocabulary, format):
    base = save_base(tmp_path / "base", hidden_act="gelu_tanh")
    save_adapter(base, tmp_path / "adapter", vocabulary_path=vocabulary)
    convert(tmp_path / "adapter", tmp_path / "whole")
    convert(tmp_path / "adapter", tmp_path / "there", format)
    convert(tmp_path / "there", tmp_path / "again")
    assert read(tmp_path / "again").keys() == read(tmp_path / "whole").keys()
    for name, value in read(tmp_path / "again").items():
        np.testing.assert_array_equal(value, read(tmp_path / "whole")[name], err_msg=name)


@pytest.mark.slow
def test_command_says_what_was_merged_and_takes_another_place_of_the_base(tmp_path):
    save_adapter(save_base(tmp_path / "base"), tmp_path / "adapter", targets=("query",))
    (tmp_path / "base").rename(tmp_path / "moved")
    command = ("convert", tmp_path / "adapter", tmp_path / "whole")
    assert_refused(run(*command), "which is not there", "--base MODEL")
    status, output, error = run(*command, "--dry-run", "--base", tmp_path / "moved")
    assert status == 0, error
    output = output.replace("\n", " ")
    assert "adapter → huggingface: BertForSequenceClassification" in output and "Nothing was written." in output
    assert f"merged into {tmp_path / 'moved'}: attention.self.query; 2 weights, rank 2, scaling 2.5" in output
    assert not (tmp_path / "whole").exists()
    refuse(ValueError, "`base` must go with", tmp_path / "moved", tmp_path / "again", base=tmp_path / "moved")


def test_card_of_an_adapter_becomes_that_of_the_model(tmp_path, vocabulary):
    base = save_base(tmp_path / "base")
    model = save_adapter(base, tmp_path / "adapter", vocabulary_path=vocabulary)
    convert(tmp_path / "adapter", tmp_path / "whole")
    model.save_to_preset(tmp_path / "merged", vocabulary_path=vocabulary)
    adapter, whole, merged = ((tmp_path / name / "README.md").read_text() for name in ("adapter", "whole", "merged"))
    assert "peft" in adapter and "peft" not in whole
    assert whole == merged.replace("\ntags:", f"\nbase_model: {json.dumps(str(base))}\ntags:", 1)


def refuse(error, message, *arguments, **options):
    with pytest.raises(error, match=message) as caught:
        convert(*arguments, **options)
    assert "\n" not in str(caught.value)
    assert not arguments[1].exists()


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"num_layers": 3}, "`num_layers` must be that of the base of the adapter. Received: num_layers=2, and 3 in"),
        ({"num_heads": 2}, "`num_heads` must be that of the base"),
        ({"family": "electra"}, "`family` must be that of the base of the adapter. Received: family=bert, and electra"),
    ],
)
def test_another_base_is_refused(tmp_path, sizes, message):
    save_adapter(save_base(tmp_path / "base"), tmp_path / "adapter")
    other = save_base(tmp_path / "other", **sizes)
    refuse(ValueError, message, tmp_path / "adapter", tmp_path / "out", base=other)


def test_base_that_is_none_or_an_adapter_is_refused(tmp_path):
    save_adapter(save_base(tmp_path / "base"), tmp_path / "adapter")
    output = tmp_path / "out"
    refuse(FileNotFoundError, "base of an adapter must be a model", tmp_path / "adapter", output, base=tmp_path / "no")
    missing = "must hold model.safetensors. Received: .*adapter, without it"
    refuse(FileNotFoundError, missing, tmp_path / "adapter", output, base=tmp_path / "adapter")
    edit_config(tmp_path / "adapter", base_model_name_or_path=None)
    refuse(ValueError, "must have base_model_name_or_path. Received: None", tmp_path / "adapter", output)
    convert(tmp_path / "adapter", output, base=tmp_path / "base")


def test_damaged_adapters_are_refused(tmp_path):
    save_adapter(save_base(tmp_path / "base"), tmp_path / "adapter")
    file = tmp_path / "adapter" / ADAPTER_FILE
    tensors = load_file(file)
    first = next(name for name in tensors if "lora_A" in name)
    damages = {
        "of the shape None": {name: value for name, value in tensors.items() if name != first},
        r"by matrices for \(24, 25\), of \(24, 24\)": tensors | {first: np.zeros((2, 25), "float32")},
        "must be finite in float32": tensors | {first: np.full_like(tensors[first], np.nan)},
    }
    for message, content in damages.items():
        save_file(content, file)
        refuse(ValueError, message, tmp_path / "adapter", tmp_path / "out")
    file.write_bytes(file.read_bytes()[:100])
    refuse(ValueError, ADAPTER_FILE, tmp_path / "adapter", tmp_path / "out")
    file.unlink()
    refuse(FileNotFoundError, "must hold adapter_model.safetensors", tmp_path / "adapter", tmp_path / "out")
    (tmp_path / "adapter" / ADAPTER_CONFIG).write_text("{")
    refuse(ValueError, "not JSON", tmp_path / "adapter", tmp_path / "out")


def test_adapter_is_no_format_to_write(tmp_path):
    base = save_base(tmp_path / "base")
    refuse(ValueError, "must hold a whole model. Received: adapter", base, tmp_path / "out", "adapter")
    save_adapter(base, tmp_path / "adapter")
    shutil.copy(base / "model.safetensors", tmp_path / "adapter")  # then it is a whole model, as it is when loaded
    assert convert(tmp_path / "adapter", tmp_path / "out", dtype="float16").source == "huggingface"

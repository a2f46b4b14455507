"""Presets of KerasHub without KerasHub: what comes back, old ones, and other numbers."""

import json
import subprocess
import sys

import h5py
import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_bert_flow as kbf
from keras_bert_flow.conversion.convert import convert
from keras_bert_flow.conversion.model_directory import save_model_directory
from tests.commands import kbf as run
from tests.oracles import numpy_bert
from tests.oracles.small_bert import SMALL
from tests.oracles.task_models import make_task_model
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.any_backend


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(45))]) + "\n")
    return path


@pytest.fixture(scope="module")
def classifier(tmp_path_factory, vocabulary):
    folder = tmp_path_factory.mktemp("models") / "classifier"
    save_model_directory(make_task_model("classification", hidden_act="gelu_tanh"), folder, vocabulary, cased=True)
    return folder


@pytest.fixture(scope="module")
def preset(classifier):
    convert(classifier, classifier.with_name("preset"), "kerashub")
    return classifier.with_name("preset")


def read_tensors(folder):
    return {name: value.tobytes() for name, value in load_file(folder / "model.safetensors").items()}


def read_config(folder):
    return json.loads((folder / "config.json").read_text())


@pytest.mark.parametrize(
    ("kind", "family"),
    [
        ("classification", "bert"),
        ("classification", "distilbert"),
        ("regression", "bert"),
        ("multi_label", "bert"),
        ("embedding", "bert"),
    ],
)
def test_labels_and_kinds_come_back(tmp_path, vocabulary, kind, family):
    act = "gelu_tanh" if family == "bert" else "gelu"
    model = make_task_model(kind, family=family, hidden_act=act, dropout_rate=0.2, attention_dropout_rate=0.4)
    save_model_directory(model, tmp_path / "ours", vocabulary, max_tokens=12)
    convert(tmp_path / "ours", tmp_path / "preset", "kerashub")
    done = convert(tmp_path / "preset", tmp_path / "again")
    assert done.architecture.endswith("Model" if kind == "embedding" else "ForSequenceClassification")
    assert read_tensors(tmp_path / "ours") == read_tensors(tmp_path / "again")
    assert read_config(tmp_path / "ours") == read_config(tmp_path / "again")
    names = ["vocab.txt", "tokenizer.json"]
    names += ["modules.json", "1_Pooling/config.json", "sentence_bert_config.json"] if kind == "embedding" else []
    for name in names:
        assert (tmp_path / "ours" / name).read_bytes() == (tmp_path / "again" / name).read_bytes()


def test_preset_of_keras_nlp_is_read(tmp_path, classifier, preset):
    old = tmp_path / "old"
    old.mkdir()
    for name in ("config.json", "task.json", "tokenizer.json"):
        text = (preset / name).read_text().replace("keras_hub", "keras_nlp")
        (old / name).write_text(text.replace("BertTextClassifier", "BertClassifier"))
    (old / "assets" / "tokenizer").mkdir(parents=True)
    (old / "assets" / "tokenizer" / "vocabulary.txt").write_bytes((classifier / "vocab.txt").read_bytes())
    for name in ("model.weights.h5", "task.weights.h5"):  # as Keras 2.13 named its layers
        with h5py.File(preset / name) as new, h5py.File(old / name, "w") as file:
            new.copy("layers", file, "_layer_checkpoint_dependencies")
    convert(old, tmp_path / "again")
    assert read_tensors(tmp_path / "again") == read_tensors(classifier)
    named = read_config(tmp_path / "again")
    assert named["id2label"] == {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}  # it does not name them


@pytest.mark.parametrize(("family", "kind"), [("roberta", "byte-level BPE"), ("albert", "SentencePiece")])
def test_vocabulary_that_has_no_class_there_is_left_out_and_told(tmp_path, vocabulary, family, kind):
    save_model_directory(kbf.Backbone(family, **SMALL), tmp_path / "ours", vocabulary)
    done = convert(tmp_path / "ours", tmp_path / "preset", "kerashub")
    assert f"tokenizer left out, as that of KerasHub's {family.title()} is {kind}" in done.remarks
    assert not (tmp_path / "preset" / "tokenizer.json").exists() and not (tmp_path / "preset" / "assets").exists()
    assert "no tokenizer, as the preset has none" in convert(tmp_path / "preset", tmp_path / "again").remarks


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rounded_numbers_are_read_back(tmp_path, classifier, dtype):
    done = convert(classifier, tmp_path / "preset", "kerashub", dtype=dtype)
    assert f"numbers rounded to {dtype}" in done.remarks
    policy = read_config(tmp_path / "preset")["config"]["dtype"]["config"]
    assert policy == {"name": dtype}
    convert(tmp_path / "preset", tmp_path / "again", dtype=dtype)
    convert(classifier, tmp_path / "direct", dtype=dtype)
    assert (tmp_path / "direct" / "model.safetensors").read_bytes() == (
        tmp_path / "again" / "model.safetensors"
    ).read_bytes()


def test_positions_of_a_roberta_that_was_trained_there_count(tmp_path):
    model = kbf.Backbone("roberta", **SMALL)
    numpy_bert.randomise_weights(model, 1)
    save_model_directory(model, tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "preset", "kerashub")
    place = "layers/token_and_position_embedding/position_embedding/vars/0"
    with h5py.File(tmp_path / "preset" / "model.weights.h5", "a") as file:
        file[place][3] += 1
        rows = file[place][()]
    convert(tmp_path / "preset", tmp_path / "again")
    tensors = load_file(tmp_path / "again" / "model.safetensors")
    assert np.array_equal(tensors["embeddings.position_embeddings.weight"], np.concatenate([np.zeros((1, 24)), rows]))
    assert not tensors["embeddings.token_type_embeddings.weight"].any()  # it is in the rows


def test_neither_keras_nor_keras_hub_is_needed(tmp_path, classifier):
    script = (
        "import sys\n"
        "from keras_bert_flow.conversion.convert import convert\n"
        "convert(sys.argv[1], sys.argv[2] + '/a', 'kerashub')\n"
        "convert(sys.argv[2] + '/a', sys.argv[2] + '/b')\n"
        "names = ('keras', 'keras_hub', 'tensorflow', 'jax', 'torch', 'pydantic')\n"
        "print([name for name in names if name in sys.modules])\n"
    )
    command = [sys.executable, "-c", script, str(classifier), str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.stdout == "[]\n"
    assert read_tensors(tmp_path / "b") == read_tensors(classifier)


@pytest.mark.slow
def test_accepted_arithmetic_is_in_the_result_and_told(tmp_path, vocabulary):
    model = kbf.MaskedLM(kbf.BertBackbone(**SMALL, use_pooler=False))
    save_model_directory(model, tmp_path / "ours", vocabulary)
    options = ("--gelu", "tanh", "--mlm-gelu", "erf", "--mlm-epsilon", "1e-5")
    status, output, _ = run("convert", tmp_path / "ours", tmp_path / "new", *options)
    assert status == 0
    for line in ("GELU tanh, of erf", "GELU of the masked LM erf, of tanh", "epsilon of the masked LM 1e-05, of 1e-12"):
        assert f"  {line}\n" in output
    config = read_config(tmp_path / "new")
    fields = {"hidden_act": "gelu_new", "mlm_hidden_act": "gelu", "mlm_layer_norm_eps": 1e-5}
    assert fields.items() <= config.items()
    shape = kbf.MaskedLM.from_preset(tmp_path / "new").backbone.shape
    assert (shape.hidden_act, shape.mlm_hidden_act, shape.mlm_layer_norm_epsilon) == ("gelu_tanh", "gelu", 1e-5)
    convert(tmp_path / "new", tmp_path / "preset", "kerashub")
    unchanged = convert(tmp_path / "new", tmp_path / "same", gelu="tanh", mlm_gelu="erf", mlm_epsilon=1e-5)
    assert unchanged.remarks == () and read_config(tmp_path / "same") == config


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"gelu": "relu"}, "`gelu` must be one of erf, tanh. Received: 'relu'"),
        ({"mlm_gelu": "erf"}, "must have a head for masked tokens to set `mlm_gelu`"),
        ({"mlm_epsilon": 1e-5}, "must have a head for masked tokens to set `mlm_epsilon`"),
        ({"mlm_epsilon": 2.0}, "`mlm_epsilon` must be above 0 and below 1. Received: 2.0"),
    ],
)
def test_arithmetic_that_cannot_be_is_refused(tmp_path, classifier, options, words):
    with pytest.raises(ValueError, match=words):
        convert(classifier, tmp_path / "new", **options)
    assert not [*tmp_path.iterdir()]

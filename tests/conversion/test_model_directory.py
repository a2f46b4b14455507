"""Model directories: what is loaded, what is refused, and that the message names the file."""

import json

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from keras_bert_flow.models.backbone import BertBackbone
from keras_bert_flow.models.heads.classifiers import TextClassifier
from keras_bert_flow.models.pretraining.masked_lm import BertPretrainer, MaskedLM
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES
from tests.oracles import numpy_bert
from tests.oracles.small_bert import SMALL


@pytest.fixture
def pretrainer():
    model = BertPretrainer(BertBackbone(**SMALL))
    numpy_bert.randomise_weights(model, seed=1)
    return model


@pytest.fixture
def folder(pretrainer, tmp_path):
    words = "".join(f"{piece}\n" for piece in (*SPECIAL_PIECES, *(f"word{index}" for index in range(45))))
    (tmp_path / "words.txt").write_text(words)
    pretrainer.save_to_preset(tmp_path / "model", vocabulary_path=tmp_path / "words.txt", card="# A card\n")
    return tmp_path / "model"


def assert_same_weights(ours, theirs):
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def edit_json(path, **fields):
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def edit_tensors(path, change):
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def test_directory_holds_the_layout(folder):
    names = {"config.json", "model.safetensors", "vocab.txt", "tokenizer.json", "tokenizer_config.json", "README.md"}
    assert {path.name for path in folder.iterdir()} == names
    assert (folder / "README.md").read_text() == "# A card\n"


def test_weights_that_are_not_numbers_are_not_written(pretrainer, tmp_path):
    bias = pretrainer.get_layer("nsp").bias
    bias.assign(np.array([0.0, np.nan], "float32"))
    with pytest.raises(ValueError, match="Weights must be numbers. Received: nsp/bias with NaN or infinity"):
        pretrainer.save_to_preset(tmp_path / "bad")
    assert not (tmp_path / "bad").exists()


def test_pretrainer_round_trip(folder, pretrainer):
    again = BertPretrainer.from_preset(folder)
    assert_same_weights(again.get_weights(), pretrainer.get_weights())
    ours, theirs = pretrainer.backbone.get_config(), again.backbone.get_config()
    assert ours == theirs


@pytest.mark.any_backend
def test_overrides_change_rates_and_precision_only(folder, pretrainer):
    again = BertPretrainer.from_preset(folder, dropout_rate=0.0, attention_dropout_rate=0.3, dtype="mixed_bfloat16")
    backbone = again.backbone
    assert (backbone.dropout_rate, backbone.attention_dropout_rate, backbone.compute_dtype) == (0.0, 0.3, "bfloat16")
    assert_same_weights(again.get_weights(), pretrainer.get_weights())
    with pytest.raises(ValueError, match="among dropout_rate, .* Received: hidden_dim"):
        BertBackbone.from_preset(folder, hidden_dim=12)


def test_backbone_loads_from_pretrainer(folder, pretrainer):
    assert_same_weights(BertBackbone.from_preset(folder).get_weights(), pretrainer.backbone.get_weights())


def test_classifier_starts_new_head_on_pretrainer(folder, pretrainer):
    model = TextClassifier.from_preset(folder, labels=["a", "b", "c"], dropout_rate=0.4)
    assert (model.num_classes, model.labels, model.dropout_rate) == (3, ("a", "b", "c"), 0.4)
    assert model.backbone.dropout_rate == 0.4
    assert_same_weights(model.backbone.get_weights(), pretrainer.backbone.get_weights())
    with pytest.raises(ValueError, match="model: there is no classifier in it, .* needs `num_classes` or `labels`"):
        TextClassifier.from_preset(folder)


@pytest.mark.any_backend
def test_classifier_refuses_other_classes(tmp_path):
    TextClassifier(BertBackbone(**SMALL), 2, labels=["no", "yes"]).save_to_preset(tmp_path)
    assert TextClassifier.from_preset(tmp_path).labels == ("no", "yes")
    with pytest.raises(ValueError, match="has 2 classes. Received: num_classes=3"):
        TextClassifier.from_preset(tmp_path, num_classes=3)
    with pytest.raises(ValueError, match=r"labels=\['yes', 'no'\], id2label=\['no', 'yes'\]"):
        TextClassifier.from_preset(tmp_path, labels=["yes", "no"])


@pytest.mark.any_backend
def test_unnamed_labels_stay_unnamed(tmp_path):
    TextClassifier(BertBackbone(**SMALL), 3).save_to_preset(tmp_path)
    assert TextClassifier.from_preset(tmp_path).labels is None
    assert TextClassifier.from_preset(tmp_path, labels=["a", "b", "c"]).labels == ("a", "b", "c")


@pytest.mark.any_backend
def test_old_spellings_load(folder, pretrainer):
    def age(tensors):
        renamed = {}
        for name, value in tensors.items():
            name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
            renamed[name] = value
        return renamed | {"bert.embeddings.position_ids": np.arange(16)[None]}

    edit_tensors(folder / "model.safetensors", age)
    assert_same_weights(BertPretrainer.from_preset(folder).get_weights(), pretrainer.get_weights())


@pytest.mark.any_backend
def test_half_precision_loads(folder, pretrainer):
    edit_tensors(
        folder / "model.safetensors", lambda tensors: {name: value.astype("float16") for name, value in tensors.items()}
    )
    for ours, theirs in zip(pretrainer.get_weights(), BertPretrainer.from_preset(folder).get_weights(), strict=True):
        np.testing.assert_array_equal(ours.astype("float16").astype("float32"), theirs)


def test_bfloat16_loads(folder, pretrainer):
    torch = pytest.importorskip("torch", reason="numpy cannot write bfloat16")
    from safetensors import torch as files

    path = folder / "model.safetensors"
    files.save_file({name: value.bfloat16() for name, value in files.load_file(path).items()}, path)
    for ours, theirs in zip(pretrainer.get_weights(), BertPretrainer.from_preset(folder).get_weights(), strict=True):
        np.testing.assert_array_equal(torch.tensor(ours).bfloat16().float().numpy(), theirs)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"must hold {name}. Received: .*model"):
        BertBackbone.from_preset(folder)


def test_missing_folder_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="Received: .*nowhere"):
        BertBackbone.from_preset(tmp_path / "nowhere")


@pytest.mark.parametrize("kept", [0, 5, 200, -1])
def test_truncated_tensors_are_refused(folder, kept):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    assert_one_line(lambda: BertBackbone.from_preset(folder), "model.safetensors: not a whole safetensors file")


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"model_type": "bert"'])
def test_broken_config_is_refused(folder, text):
    (folder / "config.json").write_text(text)
    assert_one_line(lambda: BertBackbone.from_preset(folder), "config.json: ")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "gpt2"}, "Received: model_type='gpt2'. Convert the checkpoint first"),
        ({"vocab_size": None}, "`vocab_size` must be a positive whole number. Received: vocab_size=None"),
        ({"hidden_size": "24"}, "`hidden_size` must be a positive whole number. Received: hidden_size='24'"),
        ({"num_hidden_layers": 0}, "Received: num_hidden_layers=0"),
        ({"num_attention_heads": 5}, "`hidden_dim` must be divisible by `num_heads`"),
        ({"hidden_act": "tanh"}, "Received: hidden_act='tanh'"),
        ({"position_embedding_type": "relative_key"}, "Received: position_embedding_type='relative_key'"),
        ({"is_decoder": True}, "Received: is_decoder=True"),
        ({"hidden_dropout_prob": "x"}, "`hidden_dropout_prob` must be a number"),
    ],
)
@pytest.mark.any_backend
def test_unfit_config_is_refused(folder, fields, message):
    edit_json(folder / "config.json", **fields)
    assert_one_line(lambda: BertBackbone.from_preset(folder), "config.json: ", message)


def test_vocabulary_of_other_size_is_refused(folder, tmp_path):
    (folder / "vocab.txt").write_text("one\ntwo\n")
    assert_one_line(lambda: BertBackbone.from_preset(folder), "vocab.txt", "Received: 2 lines, vocabulary_size=50")
    (folder / "vocab.txt").replace(tmp_path / "other.txt")
    model = BertBackbone(**SMALL)
    assert_one_line(lambda: model.save_to_preset(tmp_path / "new", vocabulary_path=tmp_path / "other.txt"), "other.txt")


def test_missing_tensor_is_named(folder):
    key = "bert.encoder.layer.1.attention.self.key.weight"

    def drop(tensors):
        tensors.pop(key)
        return tensors

    edit_tensors(folder / "model.safetensors", drop)
    assert_one_line(lambda: BertBackbone.from_preset(folder), f"there is no tensor `{key.removeprefix('bert.')}`")


def test_tensor_of_other_shape_is_named(folder):
    key = "bert.encoder.layer.0.intermediate.dense.weight"
    edit_tensors(folder / "model.safetensors", lambda tensors: tensors | {key: tensors[key].T.copy()})
    message = "`encoder.layer.0.intermediate.dense.weight` must have the shape (40, 24), by config.json"
    assert_one_line(lambda: BertBackbone.from_preset(folder), "model.safetensors: ", message, "Received: (24, 40)")


@pytest.mark.any_backend
def test_backbone_directory_is_no_pretrainer(tmp_path):
    BertBackbone(**SMALL).save_to_preset(tmp_path)
    assert_one_line(lambda: BertPretrainer.from_preset(tmp_path), "there is no tensor `cls.", "BertPretrainer")


@pytest.mark.any_backend
def test_classifier_gets_a_new_pooler_on_a_masked_lm(tmp_path):
    model = MaskedLM(BertBackbone(**SMALL, use_pooler=False))
    model.save_to_preset(tmp_path)
    classifier = TextClassifier.from_preset(tmp_path, num_classes=3)
    ours = {variable.path: variable for variable in model.backbone.weights}
    for variable in classifier.backbone.weights:
        if variable.path in ours:
            np.testing.assert_array_equal(*map(keras.ops.convert_to_numpy, (variable, ours.pop(variable.path))))
        else:
            assert variable.path.startswith("pooler/")
    assert not ours
    assert np.any(keras.ops.convert_to_numpy(classifier.backbone.get_layer("pooler").dense.kernel))
    classifier.save_to_preset(tmp_path / "classifier")  # and now it has one
    again = TextClassifier.from_preset(tmp_path / "classifier")
    assert_same_weights(again.get_weights(), classifier.get_weights())


@pytest.mark.any_backend
def test_backbone_of_a_masked_lm_has_no_pooler(tmp_path):
    MaskedLM(BertBackbone(**SMALL, use_pooler=False)).save_to_preset(tmp_path)
    backbone = BertBackbone.from_preset(tmp_path)
    assert set(backbone.output) == {"sequence_output"} and not backbone.use_pooler
    assert_one_line(lambda: BertPretrainer.from_preset(tmp_path), "there is no tensor `pooler.", "BertPretrainer")


def test_labels_must_name_every_class(tmp_path):
    model = TextClassifier(BertBackbone(**SMALL), 3)
    assert_one_line(lambda: model.save_to_preset(tmp_path, labels=["a", "b"]), "2 labels, num_classes=3")


def test_other_objects_are_not_saved(tmp_path):
    from keras_bert_flow.conversion.model_directory import save_model_directory

    with pytest.raises(TypeError, match="Received: dict"):
        save_model_directory({}, tmp_path)


def assert_one_line(act, *parts):
    with pytest.raises(ValueError) as caught:
        act()
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert part in message

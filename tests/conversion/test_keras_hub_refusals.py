"""What KerasHub cannot hold, and presets that are damaged: one line each, before anything is written."""

import json
import shutil
from functools import partial

import h5py
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.conversion.convert import convert
from keras_bert_flow.conversion.model_directory import save_model_directory
from tests.commands import assert_refused
from tests.commands import kbf as run
from tests.oracles.small_bert import SMALL
from tests.oracles.task_models import make_task_model

pytestmark = pytest.mark.any_backend

TANH = SMALL | {"num_layers": 1, "hidden_act": "gelu_tanh"}
NO_POOLER = TANH | {"use_pooler": False}
MODELS = {
    "next sentences": (
        lambda: kbf.BertPretrainer(kbf.BertBackbone(**TANH)),
        r"BertForPreTraining; it has BertBackbone, .*kbf.MaskedLM.from_preset\(FROM\)",
    ),
    "tags": (partial(make_task_model, "token_classification", **TANH), "Received: BertForTokenClassification; it has"),
    "answers": (partial(make_task_model, "question_answering", **TANH), "Received: BertForQuestionAnswering; it has"),
    "choices": (partial(make_task_model, "multiple_choice", **TANH), "Received: BertForMultipleChoice; it has"),
    "mean": (
        lambda: kbf.TextClassifier(kbf.BertBackbone(**NO_POOLER), num_classes=2, pooling="mean"),
        "must predict from the first token. Received: classifier_pooling=mean",
    ),
    "electra classifier": (
        lambda: kbf.TextClassifier(kbf.Backbone("electra", **TANH, use_pooler=True), num_classes=2),
        "Received: ElectraForSequenceClassification; it has ElectraBackbone. Take a part",
    ),
    "electra pooler": (
        lambda: kbf.Backbone("electra", **TANH, use_pooler=True),
        r"must have a place in KerasHub's ElectraBackbone. Received: pooler.dense.",
    ),
    "words": (
        lambda: kbf.BagOfWordsPretrainer(
            kbf.MaskedLM(kbf.BertBackbone(**NO_POOLER, mlm_hidden_act="gelu", mlm_layer_norm_epsilon=1e-5)), 0.1
        ),
        r"must have a place in KerasHub's BertMaskedLM. Received: cls.words.",
    ),
    "segments": (
        lambda: kbf.Backbone("roberta", **SMALL, num_segments=2),
        "must have no segments. Received: num_segments=2",
    ),
    "groups": (
        lambda: kbf.Backbone("albert", **TANH | {"num_layers": 3}, num_groups=2),
        "must have groups of as many layers each. Received: num_groups=2, num_layers=3",
    ),
    "sharing": (
        lambda: kbf.Backbone("albert", **TANH | {"num_layers": 2}, num_groups=2, sharing="attention"),
        "must share whole layers. Received: sharing=attention",
    ),
    "epsilon": (
        lambda: kbf.BertBackbone(**TANH, layer_norm_epsilon=1e-5),
        "must have the epsilon 1e-12 in its encoder. Received: layer_norm_epsilon=1e-05",
    ),
    "gelu": (
        lambda: kbf.BertBackbone(**SMALL),
        "BertBackbone does: gelu tanh. Received: gelu erf. .* with --gelu tanh,",
    ),
    "other gelu": (
        lambda: kbf.Backbone("distilbert", **TANH),
        "DistilBertBackbone does: gelu erf. Received: gelu tanh. .* with --gelu erf,",
    ),
    "gelu of the head": (
        lambda: kbf.MaskedLM(kbf.BertBackbone(**SMALL, use_pooler=False)),
        r"Received: gelu erf, mlm-gelu erf, mlm-epsilon 1e-12. .* --gelu tanh --mlm-gelu erf --mlm-epsilon 1e-05,",
    ),
    "epsilon of the head": (
        lambda: kbf.MaskedLM(kbf.Backbone("albert", **NO_POOLER)),
        "Received: gelu tanh, mlm-gelu tanh, mlm-epsilon 1e-12. .* outputs with --mlm-epsilon 1e-05,",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_model_without_a_class_is_refused(tmp_path, name):
    make, words = MODELS[name]
    save_model_directory(make(), tmp_path / "ours")
    with pytest.raises(ValueError, match=words) as refusal:
        convert(tmp_path / "ours", tmp_path / "preset", "kerashub")
    assert "\n" not in str(refusal.value)
    assert [path.name for path in tmp_path.iterdir()] == ["ours"]


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("presets")
    vocabulary = folder / "vocab.txt"
    vocabulary.write_text("".join(f"{piece}\n" for piece in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")))
    with open(vocabulary, "a") as file:
        file.writelines(f"w{number}\n" for number in range(45))
    save_model_directory(make_task_model("classification", **TANH), folder / "ours", vocabulary)
    convert(folder / "ours", folder / "preset", "kerashub")
    return folder / "preset"


def edit(name, change):
    """Return a function that changes a JSON file of a folder."""

    def apply(folder):
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content))

    return apply


def edit_weights(change, name="model.weights.h5"):
    def apply(folder):
        with h5py.File(folder / name, "a") as file:
            change(file)

    return apply


def cut(folder):
    content = (folder / "model.weights.h5").read_bytes()
    (folder / "model.weights.h5").write_bytes(content[: len(content) // 2])


def replace_dataset(file, **options):
    place = "layers/dense/vars/0"
    shape = file[place].shape
    del file[place]
    file.create_dataset(place, shape, "f4", **options)


DAMAGES = {
    "cut": (cut, "not a whole HDF5 file"),
    "no weights of the task": (lambda folder: (folder / "task.weights.h5").unlink(), "h5, which is not one"),
    "no vocabulary": (lambda folder: shutil.rmtree(folder / "assets"), "vocabulary.txt"),
    "shards": (lambda folder: (folder / "model.weights.json").write_text("{}"), "must be in one file"),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{"), "config.json: not JSON"),
    "another package": (
        edit("config.json", lambda content: content.update(registered_name="mine>BertBackbone")),
        "must describe an object of KerasHub. Received: registered_name='mine>BertBackbone'",
    ),
    "another class": (
        edit("config.json", lambda content: content.update(class_name="GPT2Backbone")),
        "must be of one of Bert, Albert, .* Received: 'GPT2Backbone'",
    ),
    "no backbone": (
        edit("config.json", lambda content: content.update(class_name="BertTokenizer")),
        "must describe a backbone. Received: Tokenizer",
    ),
    "another family": (
        edit("task.json", lambda content: content.update(class_name="AlbertTextClassifier")),
        "Received: TextClassifier of albert beside a backbone of bert",
    ),
    "no size": (
        edit("config.json", lambda content: content["config"].update(num_layers="1")),
        "`num_layers` must be a positive whole number. Received: '1'",
    ),
    "heads": (
        edit("config.json", lambda content: content["config"].update(num_heads=5)),
        "`hidden_dim` must be divisible by `num_heads`",
    ),
    "too many layers": (
        edit("config.json", lambda content: content["config"].update(num_layers=2)),
        "there is no variable `layers/transformer_encoder_1/",
    ),
    "a thousand million layers": (
        edit("config.json", lambda content: content["config"].update(num_layers=10**9)),
        "Received: 1,000,000,000 layers",
    ),
    "too few positions": (
        edit("config.json", lambda content: content["config"].update(max_sequence_length=8)),
        r"`layers/position_embedding/0` must have the shape \(8, 24\)",
    ),
    "activation": (
        edit("task.json", lambda content: content["config"].update(activation="relu")),
        "`activation` must be linear, softmax or sigmoid. Received: 'relu'",
    ),
    "classes": (
        edit("task.json", lambda content: content["config"].update(num_classes=4)),
        "must have as many classes as labels. Received: num_classes=4, 3 labels",
    ),
    "another model": (
        edit("metadata.json", lambda content: content["transformers_config"].update(model_type="albert")),
        "`transformers_config` must be of the family bert",
    ),
    "splitting": (
        edit("tokenizer.json", lambda content: content["config"].update(split=False)),
        "`split` must be True. Received: False",
    ),
    "vocabulary": (
        lambda folder: (folder / "assets" / "tokenizer" / "vocabulary.txt").write_text("[PAD]\n"),
        "must have as many lines as the model has pieces. Received: 1 lines",
    ),
    "more variables": (
        edit_weights(lambda file: file.create_dataset("layers/dense/vars/2", data=np.zeros(2, "f4"))),
        "must have the variables of the class .* Received: 'layers/dense/2'",
    ),
    "compressed": (
        edit_weights(partial(replace_dataset, compression="gzip")),
        "must be in the file itself, and not compressed. Received: 'layers/dense/vars/0'",
    ),
    "elsewhere": (
        edit_weights(partial(replace_dataset, external=[("/etc/hostname", 0, 2304)])),
        "must be in the file itself, and not compressed",
    ),
    "no numbers": (
        edit_weights(lambda file: file["layers/dense/vars/0"].write_direct(np.full((24, 24), np.nan, "f4"))),
        "must be finite in float32. Received: pooler.dense.weight",
    ),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_preset_is_one_line(tmp_path, preset, name):
    damage, words = DAMAGES[name]
    shutil.copytree(preset, tmp_path / "preset")
    damage(tmp_path / "preset")
    with pytest.raises((ValueError, FileNotFoundError), match=words) as refusal:
        convert(tmp_path / "preset", tmp_path / "ours")
    assert "\n" not in str(refusal.value)
    assert [path.name for path in tmp_path.iterdir()] == ["preset"]


def test_preset_is_no_model_directory(preset):
    words = rf"Received: a preset of KerasHub. Make one of it: kbf convert {preset} NEW."
    for load in (kbf.load, kbf.Backbone.from_preset, kbf.TextClassifier.from_preset):
        with pytest.raises(ValueError, match=words):
            load(preset)
    assert_refused(run("predict", "--model", preset), f"kbf convert {preset} NEW")

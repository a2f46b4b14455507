"""Models travel between formats, byte for byte, with every head; what cannot be is told before anything is written."""

import json
import subprocess
import sys

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_bert_flow as kbf
from keras_bert_flow.conversion.codecs.tensor_bundle import open_bundle, write_bundle
from keras_bert_flow.conversion.convert import convert
from keras_bert_flow.conversion.model_directory import save_model_directory
from tests.commands import assert_refused
from tests.commands import kbf as run
from tests.oracles import numpy_bert
from tests.oracles.small_bert import SMALL
from tests.oracles.task_models import CASES, make_task_model
from tests.patience import PATIENCE_SECONDS

pytestmark = pytest.mark.any_backend

MODELS = {
    "encoder": kbf.BertBackbone,
    "pretrainer": lambda **shape: kbf.BertPretrainer(kbf.BertBackbone(**shape)),
    "masked_lm": lambda **shape: kbf.MaskedLM(kbf.BertBackbone(**shape, use_pooler=False)),
    "bag_of_words": lambda **shape: kbf.BagOfWordsPretrainer(kbf.BertPretrainer(kbf.BertBackbone(**shape)), 0.1),
}
# As google-research/bert's checkpoints list them: tf.train.list_variables of uncased_L-12_H-768_A-12.
NAMES = {
    "bert/embeddings/LayerNorm/beta": (24,),
    "bert/embeddings/LayerNorm/gamma": (24,),
    "bert/embeddings/position_embeddings": (16, 24),
    "bert/embeddings/token_type_embeddings": (2, 24),
    "bert/embeddings/word_embeddings": (50, 24),
    "bert/pooler/dense/bias": (24,),
    "bert/pooler/dense/kernel": (24, 24),
    "cls/predictions/output_bias": (50,),
    "cls/predictions/transform/LayerNorm/beta": (24,),
    "cls/predictions/transform/LayerNorm/gamma": (24,),
    "cls/predictions/transform/dense/bias": (24,),
    "cls/predictions/transform/dense/kernel": (24, 24),
    "cls/seq_relationship/output_bias": (2,),
    "cls/seq_relationship/output_weights": (2, 24),
}
LAYER_NAMES = {
    "attention/output/LayerNorm/beta": (24,),
    "attention/output/LayerNorm/gamma": (24,),
    "attention/output/dense/bias": (24,),
    "attention/output/dense/kernel": (24, 24),
    "attention/self/key/bias": (24,),
    "attention/self/key/kernel": (24, 24),
    "attention/self/query/bias": (24,),
    "attention/self/query/kernel": (24, 24),
    "attention/self/value/bias": (24,),
    "attention/self/value/kernel": (24, 24),
    "intermediate/dense/bias": (40,),
    "intermediate/dense/kernel": (24, 40),
    "output/LayerNorm/beta": (24,),
    "output/LayerNorm/gamma": (24,),
    "output/dense/bias": (24,),
    "output/dense/kernel": (40, 24),
}


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory):
    path = tmp_path_factory.mktemp("vocabulary") / "vocab.txt"
    path.write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(45))]) + "\n")
    return path


def save(model, folder, vocabulary):
    numpy_bert.randomise_weights(model, 1)
    save_model_directory(model, folder, vocabulary, cased=True)
    return folder


@pytest.fixture(scope="module")
def pretrainer(tmp_path_factory, vocabulary):
    return save(MODELS["pretrainer"](**SMALL), tmp_path_factory.mktemp("models") / "pretrainer", vocabulary)


def check_equal(one, other):
    first, second = load_file(one / "model.safetensors"), load_file(other / "model.safetensors")
    assert first.keys() == second.keys()
    assert all(first[name].tobytes() == second[name].tobytes() for name in first)
    configs = [json.loads((folder / "config.json").read_text()) for folder in (one, other)]
    assert configs[0] == configs[1]
    for name in ("vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


@pytest.mark.parametrize("name", MODELS)
def test_encoders_and_pretrainers_come_back_from_tensorflow(tmp_path, vocabulary, name):
    folder = save(MODELS[name](**SMALL), tmp_path / "ours", vocabulary)
    convert(folder, tmp_path / "theirs", "tensorflow")
    convert(tmp_path / "theirs", tmp_path / "again")
    check_equal(folder, tmp_path / "again")


@pytest.mark.parametrize("name", CASES)
def test_models_of_tasks_come_back_from_tensorflow(tmp_path, vocabulary, name):
    folder = tmp_path / "ours"
    save_model_directory(make_task_model(name), folder, vocabulary, cased=True)
    convert(folder, tmp_path / "theirs", "tensorflow")
    convert(tmp_path / "theirs", tmp_path / "again")
    check_equal(folder, tmp_path / "again")


def test_names_and_shapes_are_those_of_google_research(tmp_path, pretrainer):
    convert(pretrainer, tmp_path / "theirs", "tensorflow")
    layers = {f"bert/encoder/layer_{n}/{name}": shape for n in range(2) for name, shape in LAYER_NAMES.items()}
    assert open_bundle(tmp_path / "theirs" / "bert_model.ckpt").shapes == NAMES | layers


@pytest.mark.parametrize(
    ("left_out", "architecture"),
    [
        ((), "BertForPreTraining"),
        (("cls/seq_relationship",), "BertForMaskedLM"),
        (("cls/",), "BertModel"),
    ],
)
def test_released_checkpoint_is_known_by_its_heads_and_loses_its_optimizer(
    tmp_path, pretrainer, left_out, architecture
):
    """As they are released: settings alone in bert_config.json, and the moments of Adam beside the weights."""
    convert(pretrainer, tmp_path / "theirs", "tensorflow")
    folder = tmp_path / "theirs"
    bundle = open_bundle(folder / "bert_model.ckpt")
    kept = {name: bundle[name] for name in bundle if not name.startswith(left_out or ("-",))}
    slots = {f"{name}/adam_{slot}": np.zeros_like(value) for name, value in kept.items() for slot in "mv"}
    write_bundle(folder / "bert_model.ckpt", kept | slots | {"epoch": np.array(9, "i8")})
    config = json.loads((folder / "bert_config.json").read_text())
    for name in ("architectures", "model_type", "dtype", "tie_word_embeddings", "pad_token_id", "use_cache"):
        config.pop(name, None)
    (folder / "bert_config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(ValueError, match="whether a vocabulary keeps case.*Give --cased or --uncased"):
        convert(folder, tmp_path / "again")
    done = convert(folder, tmp_path / "again", cased=True)
    assert done.architecture == architecture and done.remarks == (
        f"{len(slots) + 1} tensors of the training left out, no weights",
    )
    ours = load_file(pretrainer / "model.safetensors")
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert {name.removeprefix("bert.") for name in again} <= {name.removeprefix("bert.") for name in ours}
    if not left_out:
        check_equal(pretrainer, tmp_path / "again")


def test_old_names_copies_and_counters_of_hugging_face_are_told(tmp_path, pretrainer):
    tensors = load_file(pretrainer / "model.safetensors")
    for new, old in (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta")):
        tensors = {name.replace(new, old): value for name, value in tensors.items()}
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].copy()
    tensors["bert.embeddings.position_ids"] = np.arange(16)[None]
    folder = tmp_path / "old"
    folder.mkdir()
    for name in ("config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_bytes((pretrainer / name).read_bytes())
    save_file(tensors, folder / "model.safetensors")
    done = convert(folder, tmp_path / "new")
    check_equal(pretrainer, tmp_path / "new")
    assert done.remarks == (
        "12 tensors renamed from gamma and beta",
        "cls.predictions.decoder.weight left out, a copy of embeddings.word_embeddings.weight",
        "bert.embeddings.position_ids left out, no weights",
    )


def test_untied_table_is_kept_where_it_can_be(tmp_path, pretrainer):
    folder = tmp_path / "untied"
    convert(pretrainer, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"] + 1
    save_file(tensors, folder / "model.safetensors")
    convert(folder, tmp_path / "again")
    config = json.loads((folder / "config.json").read_text()) | {"tie_word_embeddings": False}  # as the table says
    (folder / "config.json").write_text(json.dumps(config))
    check_equal(folder, tmp_path / "again")
    with pytest.raises(ValueError, match="must have one table for tokens and predictions"):
        convert(folder, tmp_path / "theirs", "tensorflow")
    assert not (tmp_path / "theirs").exists()


def test_rounded_numbers_are_the_nearest(tmp_path, pretrainer):
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file as load_torch

    whole = load_torch(pretrainer / "model.safetensors")
    for dtype in ("float16", "bfloat16"):
        done = convert(pretrainer, tmp_path / dtype, dtype=dtype)
        assert done.remarks == (f"numbers rounded to {dtype}",)
        rounded = load_torch(tmp_path / dtype / "model.safetensors")
        assert all(torch.equal(rounded[name], value.to(getattr(torch, dtype))) for name, value in whole.items())
        kbf.BertPretrainer.from_preset(tmp_path / dtype)


def test_number_too_large_for_a_dtype_is_refused(tmp_path, pretrainer):
    folder = tmp_path / "large"
    convert(pretrainer, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["bert.pooler.dense.bias"] = np.full(24, 1e6, "f4")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"finite in float16. Received: pooler\.dense\.bias"):
        convert(folder, tmp_path / "half", dtype="float16")
    assert not (tmp_path / "half").exists()
    convert(folder, tmp_path / "half", dtype="bfloat16")


def test_other_families_are_refused_and_nothing_is_written(tmp_path, vocabulary):
    model = kbf.Backbone("roberta", **SMALL)
    save_model_directory(model, tmp_path / "ours", vocabulary)
    with pytest.raises(ValueError, match="must be of a BERT. Received: roberta"):
        convert(tmp_path / "ours", tmp_path / "theirs", "tensorflow")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ours"]


def test_tensor_under_two_names_is_refused(tmp_path, pretrainer):
    convert(pretrainer, tmp_path / "theirs", "tensorflow")
    bundle = open_bundle(tmp_path / "theirs" / "bert_model.ckpt")
    again = {"pooler/dense/bias": bundle["bert/pooler/dense/bias"] + 1}
    write_bundle(tmp_path / "theirs" / "bert_model.ckpt", {**bundle, **again})
    with pytest.raises(ValueError, match=r"each tensor must appear once. Received: pooler\.dense\.bias, twice"):
        convert(tmp_path / "theirs", tmp_path / "again")


def test_number_that_is_none_is_refused(tmp_path, pretrainer):
    folder = tmp_path / "broken"
    convert(pretrainer, folder)
    tensors = load_file(folder / "model.safetensors")
    tensors["bert.pooler.dense.bias"] = np.full(24, np.nan, "f4")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"finite in float32. Received: pooler\.dense\.bias"):
        convert(folder, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_dry_run_writes_nothing(tmp_path, pretrainer):
    done = convert(pretrainer, tmp_path / "theirs", "tensorflow", dry_run=True)
    assert done.tensors == 46 and done.architecture == "BertForPreTraining"
    assert not [*tmp_path.iterdir()]


def test_no_backend_is_needed(tmp_path, pretrainer):
    script = (
        "import sys\n"
        "from keras_bert_flow.conversion.convert import convert\n"
        "convert(sys.argv[1], sys.argv[2] + '/a', 'tensorflow')\n"
        "convert(sys.argv[2] + '/a', sys.argv[2] + '/b')\n"
        "print([name for name in ('keras', 'tensorflow', 'jax', 'torch', 'pydantic') if name in sys.modules])\n"
    )
    command = [sys.executable, "-c", script, str(pretrainer), str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.stdout == "[]\n"
    check_equal(pretrainer, tmp_path / "b")


def test_what_cannot_be_is_one_line(tmp_path, pretrainer):
    for source, options, words in (
        (tmp_path / "nowhere", {}, "A path must exist"),
        (pretrainer, {"dtype": "int8"}, "must be float32 or bfloat16 or float16"),
        (pretrainer, {"source": "tensorflow"}, "bert_config.json"),
        (pretrainer.parent, {}, "must be of one format"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=words) as refusal:
            convert(source, tmp_path / "out", **options)
        assert "\n" not in str(refusal.value)
    assert not [*tmp_path.iterdir()]


@pytest.mark.slow
def test_command_says_what_was_done(tmp_path, pretrainer):
    count = kbf.BertPretrainer.from_preset(pretrainer).count_params()
    status, output, _ = run("convert", pretrainer, tmp_path / "a", "--format", "tensorflow")
    assert status == 0
    assert output.splitlines() == [
        f"huggingface → tensorflow: BertForPreTraining, 46 tensors, {count:,} parameters.",
        "  tokenizer.json, README.md left out",
        str(tmp_path / "a"),
    ]
    status, output, _ = run("convert", tmp_path / "a" / "bert_model.ckpt", tmp_path / "b", "--dry-run")
    assert status == 0 and output.endswith("Nothing was written.\n")
    assert not (tmp_path / "b").exists()


def test_command_refuses_before_it_begins(tmp_path, pretrainer):
    def refuse(*arguments, of=pretrainer, to=tmp_path / "out", words):
        assert_refused(run("convert", of, to, *arguments), words)

    refuse(words="must change the model")
    refuse("--format", "onnx", words="A format must be one of huggingface, tensorflow")
    refuse("--format", "tensorflow", to=pretrainer, words="must be new")
    assert not [*tmp_path.iterdir()]


def test_layers_that_the_settings_do_not_have_are_refused(tmp_path, pretrainer):
    convert(pretrainer, tmp_path / "theirs", "tensorflow")
    path = tmp_path / "theirs" / "bert_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 1}))
    with pytest.raises(ValueError, match=r"`encoder\.layer\.1\.attention.*num_hidden_layers to 2"):
        convert(tmp_path / "theirs", tmp_path / "again")

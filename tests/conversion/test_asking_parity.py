"""What models say that nobody fine-tuned: fillings of masks and features, as `transformers` has them."""

import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES, write_vocabulary
from tests.oracles import numpy_bert
from tests.oracles.small_bert import SMALL

torch = pytest.importorskip("torch", reason="the reference needs torch")
transformers = pytest.importorskip("transformers", reason="the reference needs transformers")

PIECES = (*SPECIAL_PIECES, "paris", "france", "the", "of", "is", ".", "##s", *(f"w{n}" for n in range(38)))
TEXTS = [
    "Paris is the [MASK] of France.",
    "[MASK]",
    "[MASK] w1, [MASK][MASK] w2 w3 w4 w5 unheard [MASK].",
    "w7 w8 w9 [MASK] w10",
]
UNMASKED = ["Paris is the w4 of France.", "w1", "w1 w2 unheard w3 w4 w5 w6 w7 w8 w9", ["w1 w2", "w3 w4 w5"]]
# float32 rounding (6e-8) of values up to 10 through sums of up to 40 terms.
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder for model directories, and the vocabulary of all of them."""
    place = tmp_path_factory.mktemp("asked")
    write_vocabulary(place / "words.txt", PIECES)
    return place


def save(place, model):
    numpy_bert.randomise_weights(model, seed=3)
    model.save_to_preset(place / type(model).__name__, vocabulary_path=place / "words.txt")
    return place / type(model).__name__


@pytest.fixture(scope="module")
def masked_lm(place):
    return save(place, kbf.MaskedLM(kbf.BertBackbone(**SMALL, use_pooler=False)))


@pytest.fixture(scope="module")
def pretrainer(place):
    return save(place, kbf.BertPretrainer(kbf.BertBackbone(**SMALL)))


@pytest.mark.any_backend  # to import the pipeline takes longer than all else here
@pytest.mark.parametrize("kind", ["masked_lm", "pretrainer"])
def test_masks_are_filled_as_by_the_pipeline(request, kind):
    folder = request.getfixturevalue(kind)
    pipeline = transformers.pipeline("fill-mask", model=str(folder), top_k=7)
    ours = kbf.load(folder, task="fill_mask", top_k=7).predict(TEXTS)
    theirs = [
        found if text.count("[MASK]") > 1 else [found] for text, found in zip(TEXTS, pipeline(TEXTS), strict=True)
    ]
    assert [len(masks) for masks in ours] == [1, 1, 4, 1]
    for one, other in zip(ours, theirs, strict=True):
        for mask, expected in zip(one, other, strict=True):
            assert [fill["token"] for fill in mask] == [fill["token"] for fill in expected]
            assert [fill["token_str"] for fill in mask] == [PIECES[fill["token"]] for fill in expected]
            scores = [[fill["score"] for fill in fills] for fills in (mask, expected)]
            np.testing.assert_allclose(*scores, atol=TOLERANCE, rtol=0)
    assert len({fill["token"] for masks in ours for mask in masks for fill in mask}) > 7  # not the same everywhere


def test_features_are_the_hidden_states(pretrainer):
    layers = [-1, 1, 0, -2]
    found = kbf.load(pretrainer, task="features", layers=layers).predict(UNMASKED)
    tokenizer = transformers.BertTokenizer.from_pretrained(pretrainer)
    model = transformers.BertModel.from_pretrained(pretrainer).eval()
    for text, features in zip(UNMASKED, found, strict=True):
        batch = tokenizer(*([text] if isinstance(text, str) else text), return_tensors="pt")
        with torch.no_grad():
            states = model(**batch, output_hidden_states=True).hidden_states
        expected = torch.cat([states[layer][0] for layer in layers], dim=-1).numpy()
        assert features["tokens"] == tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
        assert features["tokens"][0] == "[CLS]" and features["tokens"][-1] == "[SEP]"
        np.testing.assert_allclose(features["features"], expected, atol=TOLERANCE, rtol=0)


@pytest.mark.any_backend
@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_pooled_features_are_of_the_real_tokens(masked_lm, pooling):
    tokens = kbf.load(masked_lm, task="features", layers=[-1, 0]).predict(UNMASKED)
    pooled = kbf.load(masked_lm, task="features", layers=[-1, 0], pooling=pooling).predict(UNMASKED)
    pool = {"mean": lambda rows: rows.mean(0), "cls": lambda rows: rows[0], "max": lambda rows: rows.max(0)}[pooling]
    for whole, found in zip(tokens, pooled, strict=True):
        assert found["tokens"] == whole["tokens"]
        np.testing.assert_allclose(found["features"], pool(whole["features"]), atol=TOLERANCE, rtol=0)


@pytest.mark.any_backend
def test_layers_above_are_not_computed(masked_lm):
    model = kbf.load(masked_lm, task="features", layers=[1]).model
    blocks = [layer.name for layer in model.layers if layer.name.startswith("encoder_block")]
    assert blocks == ["encoder_block_0"]
    assert model.output.shape == (None, None, 24)

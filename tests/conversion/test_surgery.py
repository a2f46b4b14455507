"""Models of another shape compute what they should, on any family, and load in `transformers`."""

import json
import re
import shutil

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import keras_bert_flow as kbf
from keras_bert_flow.conversion.convert import convert, split
from keras_bert_flow.conversion.model_directory import save_model_directory
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES
from tests.oracles import numpy_bert
from tests.oracles.small_bert import SMALL

pytestmark = pytest.mark.any_backend

SLOW = [pytest.param(family, marks=pytest.mark.slow) for family in ("deberta-v2", "mobilebert", "modernbert")]
FAMILIES = ("bert", "roberta", "distilbert", "electra", "albert", *SLOW)
PIECES = (*SPECIAL_PIECES, *"abcdefghijklmnopqrstu", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwx"))
UNTIED = {
    "bert": "cls.predictions.decoder.weight",
    "roberta": "lm_head.decoder.weight",
    "distilbert": "vocab_projector.weight",
    "electra": "generator_lm_head.weight",
    "albert": "predictions.decoder.weight",
    "mobilebert": "cls.predictions.decoder.weight",
    "modernbert": "decoder.weight",
    "deberta-v2": "cls.predictions.decoder.weight",
}
SHAPE = SMALL | {"num_layers": 3}


def write_vocabulary(folder, pieces):
    folder.mkdir(exist_ok=True, parents=True)
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in pieces))
    return folder / "vocab.txt"


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    """A masked LM of each family, and its folder."""
    folder = tmp_path_factory.mktemp(request.param)
    model = kbf.MaskedLM(kbf.Backbone(request.param, **SHAPE, use_pooler=False))
    numpy_bert.randomise_weights(model, 1)
    save_model_directory(model, folder / "model", write_vocabulary(folder, PIECES), cased=True)
    return model, folder / "model"


def guess(model, ids):
    """Return logits of the second and third token of each row."""
    ids = np.array(ids, "int32")
    inputs = {"token_ids": ids, "segment_ids": np.zeros_like(ids), "padding_mask": np.ones_like(ids)}
    inputs["mask_positions"] = np.tile(np.array([1, 2], "int32"), (len(ids), 1))
    return keras.ops.convert_to_numpy(model(inputs, training=False)["mlm"])


IDS = [[2, 7, 30, 41, 3], [2, 9, 9, 20, 3]]


def test_short_texts_are_understood_as_before_with_more_positions(model, tmp_path):
    model, folder = model
    done = convert(folder, tmp_path / "long", positions=40)
    assert done.remarks[-1] == "40 positions, of 16"
    longer = kbf.MaskedLM.from_preset(tmp_path / "long")
    assert longer.backbone.max_positions == 40
    np.testing.assert_array_equal(guess(longer, IDS), guess(model, IDS))
    guess(longer, [list(range(5, 45))])
    settings = json.loads((tmp_path / "long" / "tokenizer_config.json").read_text())
    assert settings["model_max_length"] == 40 and settings["do_lower_case"] is False


def test_positions_are_those_of_before_over_and_over(model, tmp_path):
    model, folder = model
    if not model.backbone.shape.num_position_rows:
        pytest.skip("without position embeddings")
    name = next(name for name in load_file(folder / "model.safetensors") if "position_embeddings" in name)
    before = load_file(folder / "model.safetensors")[name]
    offset = len(before) - 16
    for positions in (40, 9):
        convert(folder, tmp_path / str(positions), positions=positions)
        after = load_file(tmp_path / str(positions) / "model.safetensors")[name]
        expected = [before[offset + position % 16] for position in range(positions)]
        np.testing.assert_array_equal(after, np.concatenate([before[:offset], expected]))


def test_layers_are_kept_in_the_order_given(model, tmp_path):
    model, folder = model
    if model.backbone.family == "albert":
        with pytest.raises(ValueError, match="must have weights of their own to be chosen"):
            convert(folder, tmp_path / "less", layers=[0])
        return
    order = (0, 2) if model.backbone.family == "modernbert" else (2, 0)  # whose lowest layer stays the lowest
    done = convert(folder, tmp_path / "less", layers=order)
    assert done.remarks[-1] == f"layers {order[0]}, {order[1]} of 3"
    less = kbf.MaskedLM.from_preset(tmp_path / "less")
    assert less.backbone.num_layers == 2
    for new, old in enumerate(order):
        blocks = (less.backbone.get_layer(f"encoder_block_{new}"), model.backbone.get_layer(f"encoder_block_{old}"))
        for one, other in zip(*(block.get_weights() for block in blocks), strict=True):
            np.testing.assert_array_equal(one, other)
    convert(folder, tmp_path / "all", layers=[0, 1, 2])
    np.testing.assert_array_equal(guess(kbf.MaskedLM.from_preset(tmp_path / "all"), IDS), guess(model, IDS))


def test_known_pieces_are_understood_as_before_with_another_vocabulary(model, tmp_path):
    model, folder = model
    pieces = (*SPECIAL_PIECES, "abc", "##xy", "中", *reversed(PIECES[7:]))
    done = convert(folder, tmp_path / "other", vocabulary=write_vocabulary(tmp_path, pieces))
    assert done.remarks[-1] == "48 pieces kept, 3 new, 2 gone"
    other = kbf.MaskedLM.from_preset(tmp_path / "other")
    assert other.backbone.vocabulary_size == len(pieces)
    ids = [[pieces.index(PIECES[token]) for token in row] for row in IDS]
    found, expected = guess(other, ids), guess(model, IDS)
    shared = [piece for piece in pieces if piece in PIECES]
    np.testing.assert_allclose(
        found[..., [pieces.index(piece) for piece in shared]],
        expected[..., [PIECES.index(piece) for piece in shared]],
        atol=1e-6,
    )
    table = keras.ops.convert_to_numpy(model.backbone.get_layer("token_embedding").embeddings)
    rows = keras.ops.convert_to_numpy(other.backbone.get_layer("token_embedding").embeddings)
    parts = {"abc": ["a", "##b", "##c"], "##xy": PIECES, "中": PIECES}  # no `##y` was known
    for piece, of in parts.items():
        mean = table[[PIECES.index(part) for part in of]].mean(axis=0)
        np.testing.assert_allclose(rows[pieces.index(piece)], mean, atol=1e-6)
    assert kbf.WordPieceTokenizer.from_file(tmp_path / "other" / "vocab.txt", cased=True).pieces == pieces


def test_table_for_prediction_of_its_own_gets_the_vocabulary_too(model, tmp_path):
    """As `transformers` writes it where the two are not tied; a copy of the embeddings is left out."""
    model, folder = model
    shutil.copytree(folder, tmp_path / "untied")
    tensors = load_file(folder / "model.safetensors")
    table = next(value for name, value in tensors.items() if re.search(r"(word|tok)_embeddings.weight$", name))
    head = UNTIED[model.backbone.family]
    vocabulary = write_vocabulary(tmp_path, (*PIECES, "ab"))
    for value, is_kept in ((table, False), (table + 1, True)):
        save_file(tensors | {head: value}, tmp_path / "untied" / "model.safetensors")
        done = convert(tmp_path / "untied", tmp_path / str(is_kept), vocabulary=vocabulary)
        found = load_file(tmp_path / str(is_kept) / "model.safetensors")
        assert (head in found) == is_kept != any(f"{head} left out, a copy of" in remark for remark in done.remarks)
        if is_kept:
            np.testing.assert_array_equal(found[head][: len(PIECES)], value)
            np.testing.assert_allclose(found[head][-1], value[[PIECES.index("a"), PIECES.index("##b")]].mean(axis=0))


def test_untied_head_guesses_as_before_and_loads_in_transformers(model, tmp_path):
    transformers = pytest.importorskip("transformers")
    model, folder = model
    done = convert(folder, tmp_path / "untied", tied=False)
    head = UNTIED[model.backbone.family]
    assert done.remarks[-1] == f"{head} new"
    kind, ids = type(model), np.arange(5, 13)[None]
    untied = kind.from_preset(tmp_path / "untied")
    assert not untied.tie_weights and untied.count_params() > model.count_params()
    np.testing.assert_allclose(
        guess(untied, ids), guess(model, ids), atol=1e-5
    )  # of numbers up to 6, summed in another order
    _, report = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "untied", output_loading_info=True)
    assert {name: list(found) for name, found in report.items() if found} == {}
    convert(tmp_path / "untied", tmp_path / "tied", tied=True)
    assert (tmp_path / "tied" / "model.safetensors").read_bytes() == (folder / "model.safetensors").read_bytes()


def test_all_at_once_loads_in_transformers(model, tmp_path):
    transformers = pytest.importorskip("transformers")
    model, folder = model
    layers = None if model.backbone.family == "albert" else [0, 2]
    vocabulary = write_vocabulary(tmp_path, (*PIECES, "ab"))
    convert(folder, tmp_path / "new", positions=24, layers=layers, vocabulary=vocabulary, dtype="bfloat16")
    _, report = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "new", output_loading_info=True)
    assert {name: list(found) for name, found in report.items() if found} == {}


def test_what_cannot_be_is_refused(model, tmp_path):
    _, folder = model

    def refuse(words, **changes):
        with pytest.raises(ValueError, match=words):
            convert(folder, tmp_path / "out", **changes)
        assert not (tmp_path / "out").exists()

    refuse("at least 8 positions", positions=7)
    moved = ("[UNK]", "[PAD]", *PIECES[2:])
    refuse("must not be tied already", tied=True)
    refuse("must keep its number", vocabulary=write_vocabulary(tmp_path, moved))
    broken = shutil.copytree(folder, tmp_path / "broken")
    (broken / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json, with list"):
        convert(broken, tmp_path / "out", positions=40)
    refuse("must hold", vocabulary=write_vocabulary(tmp_path, PIECES[1:]))
    if "albert" not in folder.parent.name:
        for layers in ([3], [-1], [0, 0], []):
            refuse("Layers must be among 0 to 2, each once", layers=layers)


def test_piece_is_split_as_a_word_or_within_one():
    known = {piece: number for number, piece in enumerate(PIECES)}
    assert [PIECES[number] for number in split("abx", known)] == ["a", "##b", "##x"]
    assert [PIECES[number] for number in split("##abx", known)] == ["##a", "##b", "##x"]
    assert split("aé", known) == []

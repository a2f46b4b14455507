"""Asking in pieces: the same answers in the same order, few shapes, and the place of what is refused."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

import keras_bert_flow as kbf
from keras_bert_flow.prediction import base_predictor
from keras_bert_flow.prediction.lines import read_items
from tests.prediction.models import LONGEST, Watched, save_classifier

POSITIONS = 512  # of a batch, so that small chunks have several
RNG = np.random.default_rng(4)
LENGTHS = RNG.geometric(0.05, 600).clip(1, 140)
TEXTS = [" ".join(RNG.choice(["w1", "w2", "cat", "is"], length)) for length in LENGTHS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_classifier(tmp_path_factory.mktemp("classifier"))


@pytest.fixture
def predictor(folder):
    predictor = kbf.load(folder, batch_positions=POSITIONS)
    predictor.model = Watched(predictor.model)
    return predictor


@pytest.fixture(scope="module")
def at_once(folder):
    """What is answered to all texts together."""
    predictor = kbf.load(folder)
    return predictor.answer([predictor.task.make_example(text) for text in TEXTS])


def assert_same(found, expected):
    values = [np.array([list(answer["probabilities"].values()) for answer in answers]) for answers in (found, expected)]
    np.testing.assert_allclose(*values, atol=1e-5)  # float32, in rows of another width
    assert np.ptp(values[0][:, 0]) > 0.01  # else another order would not show


def cut(texts, sizes):
    start = 0
    while start < len(texts):
        size = int(next(sizes))
        yield [(f"Line {start + place}", text) for place, text in enumerate(texts[start : start + size], 1)]
        start += size


def test_parquet_is_predicted_as_the_same_texts(predictor, at_once, folder, tmp_path):
    columns = {"other": range(100), "text": pa.array(TEXTS[:100], pa.string_view())}
    parquet.write_table(pa.table(columns), tmp_path / "t.parquet")
    assert_same(predictor.answer(predictor.read(tmp_path / "t.parquet")), at_once[:100])
    features = kbf.load(folder, task="features", pooling="mean")
    (tmp_path / "t.txt").write_text("\n".join(TEXTS[:100]))
    found = [[*features.read(tmp_path / name)] for name in ("t.parquet", "t.txt")]
    assert [example.inputs for example in found[0]] == [example.inputs for example in found[1]]
    parquet.write_table(pa.table({"body": ["a"]}), tmp_path / "u.parquet")
    for model in (predictor, features):
        with pytest.raises(ValueError, match=r"u\.parquet.*'text'\. Columns here: body\."):
            list(model.read(tmp_path / "u.parquet"))


def test_stream_of_many_chunks_meets_few_shapes(predictor, at_once):
    sizes = iter(RNG.integers(1, 40, 600))
    answers = list(predictor.predict_chunks(cut(TEXTS, sizes)))
    assert len(answers) > 20
    assert_same([answer for chunk in answers for answer in chunk], at_once)
    asked = predictor.model.asked
    assert {width for _, width in asked} == {16, 32, 64, 128}
    # One row, eight, a quarter, a half and the whole of a batch: 32 of 16, 16 of 32, 8 of 64, 4 of 128.
    assert len(set(asked)) <= 4 + 4 + 4 + 3
    assert len(asked) > 4 * len(set(asked))


def test_stream_of_items_is_that_of_chunks(predictor, at_once):
    assert_same(list(predictor.predict_stream(iter(TEXTS), at_once=100)), at_once)


def test_few_texts_are_one_batch(predictor):
    predictor.predict(["w1", "w2 " * 20, "cat", "is w1"])
    predictor.answer([predictor.task.make_example(text) for text in ["w1", "w2 " * 20, "cat"]])
    assert predictor.model.asked == [(4, 32), (5, 24)]


def test_blocks_of_a_file_keep_their_widths(predictor, at_once, tmp_path, monkeypatch):
    monkeypatch.setattr(base_predictor, "BLOCK", 150)
    (tmp_path / "texts.tsv").write_text("text\n" + "\n".join(TEXTS) + "\n")
    done = []
    blocks = list(predictor.answer_blocks(predictor.read(tmp_path / "texts.tsv"), done.append))
    assert [len(block) for block in blocks] == [150] * 4
    assert_same([answer for block in blocks for answer in block], at_once)
    assert sum(done) == pytest.approx(600) and len(done) == len(predictor.model.asked)
    widths = {width for _, width in predictor.model.asked}
    assert len(widths) <= 9 and LONGEST in widths
    padded = sum(rows * width for rows, width in predictor.model.asked)
    assert padded < 1.5 * sum(min(len(text.split()) + 2, LONGEST) for text in TEXTS)


def test_what_compiles_no_shapes_is_asked_the_texts_and_nothing_besides(predictor, at_once):
    predictor.model = Watched(predictor.model.model, compiles_shapes=False)
    assert_same(predictor.predict(TEXTS), at_once)
    asked = predictor.model.asked
    assert sum(rows for rows, _ in asked) == len(TEXTS)
    tokens = sum(min(len(text.split()) + 2, LONGEST) for text in TEXTS)
    assert sum(rows * width for rows, width in asked) < 1.1 * tokens  # 1.55 with few widths and sizes


def test_mistake_is_named_by_its_place_after_what_stands_before_it(predictor):
    chunks = [read_items(["w1\n", "\n", "w2\n"]), read_items(["cat\n", "a\tb\n", "w3\n"], first=4)]
    answers = predictor.predict_chunks(chunks)
    assert [len(next(answers)), len(next(answers))] == [3, 1]
    with pytest.raises(ValueError, match="^Line 5: An item for this task must have the texts text"):
        next(answers)
    with pytest.raises(ValueError, match="^Item 2: .* Received: 7"):
        predictor.predict(["w1", 7])


def test_nothing_asked_is_nothing_answered(predictor):
    assert predictor.predict([]) == list(predictor.predict_stream([])) == list(predictor.predict_chunks([[], []])) == []
    assert not predictor.model.asked


def test_batches_must_hold_something(folder):
    with pytest.raises(ValueError, match="`batch_positions` must be at least 1. Received: batch_positions=0"):
        kbf.load(folder, batch_positions=0)

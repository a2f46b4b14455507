"""Lines in and lines of JSON out: what an item may look like, what is waited for, and when a file is there."""

import json
import os
import threading
import time

import numpy as np
import pytest

from keras_bert_flow.prediction.lines import read_items, read_waiting_items, write_lines
from keras_bert_flow.tasks.formats.rows import MAX_LINE_BYTES
from tests.patience import PATIENCE_SECONDS


def items_of(chunks):
    return [[item for _, item in chunk] for chunk in chunks]


def test_items_are_texts_pairs_and_json():
    lines = ["a text\n", "\n", " \t\r\n", "one\ttwo\r\n", '{"question": "q"}\n', '["a", "b"]']
    items = ["a text", "", "", ["one", "two"], {"question": "q"}, ["a", "b"]]
    places = [f"Line {number}" for number in range(1, 7)]
    assert list(read_items(lines)) == list(zip(places, items, strict=True))


def test_json_that_is_none_is_named_by_its_line():
    with pytest.raises(ValueError, match=r"texts.txt, row 12: .* Received: .*line 1 column") as caught:
        list(read_items(["fine", "{broken"], "texts.txt, row", first=11))
    assert "\n" not in str(caught.value)


def test_file_is_read_in_few_chunks(tmp_path):
    texts = [f"text number {number} {'and more ' * (number % 9)}".strip() for number in range(2000)]
    (tmp_path / "texts.txt").write_text("\n".join(texts))  # without a line end at its end
    with (tmp_path / "texts.txt").open("rb") as file:
        chunks = items_of(read_waiting_items(file.fileno(), at_once=512))
    assert [len(chunk) for chunk in chunks] == [512, 512, 512, 464]
    assert [item for chunk in chunks for item in chunk] == texts


def test_lines_that_are_there_come_together_and_no_other_is_waited_for():
    """Whatever is written comes out before the next is written: else this would not end."""
    reading, writing = os.pipe()
    with open(writing, "wb", buffering=0) as file:
        chunks = read_waiting_items(reading, at_once=3)
        for written, expected in (
            (b"one\n", [["one"]]),
            (b"a\nb\n\nc\nd\n", [["a", "b", ""], ["c", "d"]]),
            (b"whole\nbro", [["whole"]]),
            ("ken schön\n".encode(), [["broken schön"]]),
        ):
            file.write(written)
            assert [items_of([next(chunks)])[0] for _ in expected] == expected
        file.write(b"last")
    assert items_of(chunks) == [["last"]]
    os.close(reading)


def test_writer_that_is_faster_is_not_lost():
    reading, writing = os.pipe()
    lines = [f"{number} {'x' * (1 + number % 700)}" for number in range(3000)]  # many times what a pipe holds

    def write():
        with open(writing, "w") as file:
            file.writelines(f"{line}\n" for line in lines)

    writer = threading.Thread(target=write)
    writer.start()
    chunks = items_of(read_waiting_items(reading, at_once=100))
    writer.join(PATIENCE_SECONDS)
    os.close(reading)
    assert [item for chunk in chunks for item in chunk] == lines
    assert max(map(len, chunks)) == 100


def test_line_that_is_no_text_is_named(tmp_path):
    (tmp_path / "texts.txt").write_bytes(b"\xef\xbb\xbffine\n\xff\n")
    with (tmp_path / "texts.txt").open("rb") as file:
        (chunk,) = read_waiting_items(file.fileno(), at_once=9)
        assert next(chunk) == ("Line 1", "fine")  # without the mark of its order of bytes
        with pytest.raises(ValueError, match="Line 2: .* byte 0xff"):
            next(chunk)


def test_lines_are_written_as_they_are(tmp_path, capsys):
    chunks = [[{"label": "schön"}], [{"spans": [{"start": 0}]}, {"features": np.array([0.5, -1], "float32")}]]
    write_lines(chunks, tmp_path / "out.jsonl")
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == [*chunks[0], chunks[1][0], {"features": [0.5, -1.0]}]
    assert "schön" in lines[0]
    write_lines(chunks, None)
    assert capsys.readouterr().out.splitlines() == lines


def test_file_is_not_there_before_all_is_written(tmp_path):
    (tmp_path / "out.jsonl").write_text("before\n")

    def fail_at_second():
        yield [{"label": "a"}]
        raise ValueError("the second item is none")

    with pytest.raises(ValueError, match="the second item"):
        write_lines(fail_at_second(), tmp_path / "out.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]
    assert (tmp_path / "out.jsonl").read_text() == "before\n"


def test_longest_line_of_a_pipe_is_read_in_linear_time_and_a_longer_one_is_refused(tmp_path):
    path = tmp_path / "lines.txt"
    path.write_bytes(b"a\n" + b"b" * MAX_LINE_BYTES + b"\nc\n")
    started = time.process_time()
    with path.open("rb") as file:
        (chunk,) = items_of(read_waiting_items(file.fileno(), at_once=9))
    assert [len(item) for item in chunk] == [1, MAX_LINE_BYTES, 1]
    assert time.process_time() - started < 2  # seconds
    path.write_bytes(b"a\n" + b"b" * (MAX_LINE_BYTES + 1) + b"\nc\n")
    with path.open("rb") as file, pytest.raises(ValueError, match="at most 16 MiB"):
        items_of(read_waiting_items(file.fileno(), at_once=1))

"""Lines in and lines of JSON out: what an item may look like, and that a file is there when all is written."""

import json

import pytest

from keras_bert_flow.prediction.lines import read_items, write_lines


def test_items_are_texts_pairs_and_json():
    lines = ["a text\n", "\n", "one\ttwo\r\n", '{"question": "q"}\n', '["a", "b"]']
    assert list(read_items(lines)) == ["a text", ["one", "two"], {"question": "q"}, ["a", "b"]]


def test_json_that_is_none_is_named_by_its_line():
    with pytest.raises(ValueError, match=r"Line 2: .* Received: .*line 1 column") as caught:
        list(read_items(["fine", "{broken"]))
    assert "\n" not in str(caught.value)


def test_lines_are_written_as_they_are(tmp_path, capsys):
    predictions = [{"label": "schön"}, {"spans": [{"start": 0}]}]
    write_lines(predictions, tmp_path / "out.jsonl")
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line) for line in lines] == predictions
    assert "schön" in lines[0]
    write_lines(predictions, None)
    assert capsys.readouterr().out.splitlines() == lines


def test_file_is_not_there_before_all_is_written(tmp_path):
    (tmp_path / "out.jsonl").write_text("before\n")

    def fail_at_second():
        yield {"label": "a"}
        raise ValueError("the second item is none")

    with pytest.raises(ValueError, match="the second item"):
        write_lines(fail_at_second(), tmp_path / "out.jsonl")
    assert [path.name for path in tmp_path.iterdir()] == ["out.jsonl"]
    assert (tmp_path / "out.jsonl").read_text() == "before\n"

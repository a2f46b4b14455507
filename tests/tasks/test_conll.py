import gzip
import json
import os
from pathlib import Path

import pytest

from keras_bert_flow.tasks.formats.conll import read_tagged_words, write_conll
from keras_bert_flow.tasks.formats.tagged_words import TaggedWords

DATA = os.environ.get("KBF_TEST_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="KBF_TEST_DATA is not set")
TABLE = "-DOCSTART- -X- O\n\nJan N B-PER\nslaapt V O\n\n\nIn Prep O\nGent N B-LOC\n"


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def message_of(call, *args, **kwargs) -> str:
    with pytest.raises(ValueError) as caught:
        call(*args, **kwargs)
    message = str(caught.value)
    assert "\n" not in message and "Received: " in message
    return message


def test_sentences_have_words_tags_and_rows(tmp_path):
    path = write(tmp_path, "t.txt", TABLE)
    assert read_tagged_words(path) == [
        TaggedWords(("Jan", "slaapt"), ("B-PER", "O"), str(path), (3, 4)),
        TaggedWords(("In", "Gent"), ("O", "B-LOC"), str(path), (7, 8)),
    ]


def test_columns_are_numbers_or_the_last(tmp_path):
    path = write(tmp_path, "t.txt", TABLE)
    assert read_tagged_words(path, tag_column=1)[0].tags == ("N", "V")
    assert read_tagged_words(path, word_column="last", tag_column="0")[1].words == ("O", "B-LOC")
    assert read_tagged_words(path, has_labels=False)[0].tags is None
    assert len(read_tagged_words(path, max_examples=1)) == 1


def test_blanks_line_ends_marks_and_gzip_change_nothing(tmp_path):
    expected = [(one.words, one.tags, one.rows) for one in read_tagged_words(write(tmp_path, "t.txt", TABLE))]
    variants = {
        "tabs.txt": TABLE.replace(" ", "\t"),
        "runs.txt": TABLE.replace(" ", " \t  "),
        "trailing.txt": TABLE.replace("\n", " \t\n"),
        "crlf.txt": TABLE.replace("\n", "\r\n"),
        "bom.txt": b"\xef\xbb\xbf" + TABLE.encode(),
        "no_end.txt": TABLE.removesuffix("\n"),
        "packed.txt.gz": gzip.compress(TABLE.encode()),
    }
    for name, content in variants.items():
        sentences = read_tagged_words(write(tmp_path, name, content))
        assert [(one.words, one.tags, one.rows) for one in sentences] == expected, name


def test_a_document_mark_ends_a_sentence_without_a_blank_line(tmp_path):
    path = write(tmp_path, "t.txt", "Jan O\n-DOCSTART-\nGent O\n-DOCSTART- -X- -X- O\nBrugge O\n")
    assert [one.words for one in read_tagged_words(path)] == [("Jan",), ("Gent",), ("Brugge",)]


def test_other_blanks_stand_within_words(tmp_path):
    path = write(tmp_path, "t.txt", "10\u00a0000 O\na\u2028b O\n\u3000 O\n")
    assert read_tagged_words(path)[0].words == ("10\u00a0000", "a\u2028b", "\u3000")


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_lines_of_json_are_read(tmp_path, name):
    content = '{"words": ["New York", "is"], "tags": ["B-LOC", "O"], "id": 3}\n\n{"words": ["a"], "tags": ["O"]}\n'
    path = write(tmp_path, name, gzip.compress(content.encode()) if name.endswith("gz") else content)
    assert read_tagged_words(path) == [
        TaggedWords(("New York", "is"), ("B-LOC", "O"), str(path), (1, 1)),
        TaggedWords(("a",), ("O",), str(path), (3,)),
    ]
    assert read_tagged_words(path, has_labels=False)[1:] == [
        TaggedWords((), None, str(path)),  # a blank line has a prediction, too
        TaggedWords(("a",), None, str(path), (3,)),
    ]


@pytest.mark.parametrize(
    ("content", "options", "found"),
    [
        ("a N O\nb O\n", {}, ("row 2", "2, not 3", "b, O")),
        ("a O\nb\n", {}, ("row 2", "1, not 2")),
        ("a O\nb N O\n", {}, ("row 2", "3, not 2")),
        ("a\nb\n", {}, ("row 1", "different columns")),
        ("\na N O\n", {"tag_column": 3}, ("row 2", "3 columns, a, N, O, and none of number 3")),
        ("a O\n", {"tag_column": 0}, ("row 1", "both in number 0")),
        ("a O\n", {"tag_column": "tag"}, ("`tag_column`", "'tag'")),
        ("a O\n", {"word_column": -2}, ("`word_column`", "-2")),
        ("a O\n", {"max_examples": 0}, ("`max_examples`", "0")),
        (b"a O\n\xe9 O\n", {}, ("row 2", "UTF-8", "0xe9")),
        ("", {}, ("at least one sentence",)),
        ("\n-DOCSTART- O\n\n", {}, ("at least one sentence",)),
    ],
)
def test_bad_columns_are_refused_with_their_row(tmp_path, content, options, found):
    path = write(tmp_path, "bad.txt", content)
    message = message_of(read_tagged_words, path, **options)
    assert all(part in message for part in found), message
    assert options or str(path) in message


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ('{"words": ["a", "b"], "tags": ["O"]}', "2 words, 1 tags"),
        ('{"words": ["a"]}', "'tags' must be"),
        ('{"tags": ["O"]}', "only tags"),
        ('{"words": "a", "tags": ["O"]}', "'words' must be"),
        ('{"words": [], "tags": []}', "[]"),
        ('{"words": ["a", ""], "tags": ["O", "O"]}', "['a', '']"),
        ('{"words": ["a"], "tags": [null]}', "[None]"),
        ('{"words": ["\\ud800"], "tags": ["O"]}', "ud800"),
        ('["a"]', "one JSON object"),
        ("a O", "one JSON object"),
    ],
)
def test_bad_lines_of_json_are_refused_with_their_row(tmp_path, line, found):
    path = write(tmp_path, "bad.jsonl", '{"words": ["a"], "tags": ["O"]}\n' + line + "\n")
    message = message_of(read_tagged_words, path)
    assert f"{path}, row 2: " in message and found in message, message


def test_a_missing_file_and_half_a_gzip_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="Received: "):
        read_tagged_words(tmp_path / "none.txt")
    path = write(tmp_path, "half.txt.gz", gzip.compress(os.urandom(5000).hex().encode())[:2000])
    assert "whole gzip" in message_of(read_tagged_words, path)


def test_predictions_are_written_beside_the_tags_and_read_again(tmp_path):
    examples = read_tagged_words(write(tmp_path, "t.txt", TABLE))
    predicted = [["O", "B-PER"], ["O", "I-LOC"]]
    write_conll(tmp_path / "out.txt", examples, predicted)
    assert (tmp_path / "out.txt").read_bytes() == (b"Jan B-PER O\nslaapt O B-PER\n\nIn O O\nGent B-LOC I-LOC\n\n")
    again = read_tagged_words(tmp_path / "out.txt")
    assert [list(one.tags) for one in again] == predicted
    assert [one.words for one in again] == [one.words for one in examples]
    untagged = read_tagged_words(tmp_path / "t.txt", has_labels=False)
    write_conll(tmp_path / "out.txt", untagged, predicted)
    assert (tmp_path / "out.txt").read_text(encoding="utf-8").startswith("Jan O\nslaapt B-PER\n\n")


def test_a_word_that_would_break_its_line_is_not_written(tmp_path):
    path = write(tmp_path, "t.jsonl", json.dumps({"words": ["in", "New York"], "tags": ["O", "B-LOC"]}))
    message = message_of(write_conll, tmp_path / "out.txt", read_tagged_words(path), [["O", "O"]])
    assert f"{path}, row 1" in message and "'New York'" in message
    assert not (tmp_path / "out.txt").exists()


@pytest.mark.slow
@needs_data
@pytest.mark.parametrize(
    ("part", "sentences", "words", "marks"),
    [("train", 15806, 202931, 287), ("testa", 2895, 37761, 74), ("testb", 5195, 68994, 119)],
)
def test_the_dutch_table_is_read_whole(part, sentences, words, marks):
    path = Path(DATA) / f"conll2002_ned/{part}.txt"
    examples = read_tagged_words(path)
    raw = path.read_bytes().split(b"\n")
    assert sum(line.startswith(b"-DOCSTART-") for line in raw) == marks
    assert len(examples) == sentences
    assert sum(len(one.words) for one in examples) == words - marks
    for example in examples:
        for word, tag, row in zip(example.words, example.tags, example.rows, strict=True):
            columns = raw[row - 1].decode().split(" ")
            assert (columns[0], columns[2]) == (word, tag)

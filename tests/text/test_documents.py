import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from keras_bert_flow.text.corpus.documents import Document, ReadingRule, make_document, read_documents

LINES = ReadingRule(split_lines=False)


def read(folder: Path, content: bytes, name: str = "a.txt", rule: ReadingRule = LINES) -> tuple[list, Counter]:
    """Write a file, read it, and return its documents as tuples of sentences and the counts."""
    path = folder / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    counts = Counter()
    documents = list(read_documents(str(path), rule, counts))
    assert counts["documents"] == len(documents)
    rejected = sum(number for name, number in counts.items() if name.startswith("lines_rejected_"))
    assert counts["lines_read"] == counts.pop("lines_used", 0) + counts.pop("lines_blank", 0) + rejected
    sizes = {name: counts.pop(name) for name in list(counts) if name.startswith("bytes_")}
    assert sizes.pop("bytes_read", 0) == len(content) == sum(sizes.values())
    return [document.sentences for document in documents], counts


def jsonl(*values) -> bytes:
    return "".join(json.dumps(value) + "\n" for value in values).encode()


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
@pytest.mark.parametrize(
    ("content", "documents"),
    [
        (b"a\nb\n\nc\n", [("a", "b"), ("c",)]),
        (b"a\nb\n\nc", [("a", "b"), ("c",)]),  # no newline at the end
        (b"\n\n \n\t\na\n\n\n\nb\n\n\n", [("a",), ("b",)]),  # many blank lines
        (b"a\r\nb\r\n\r\nc\r\n", [("a", "b"), ("c",)]),  # CRLF
        (b"\xef\xbb\xbfa\nb\n", [("a", "b")]),  # byte order mark
        (b"\xef\xbb\xbf\na\n", [("a",)]),
        (b"a\x07b\nc\n", [("a\x07b", "c")]),  # other controls are left to the tokenizer, which drops them
        ("  é😀\u3000\n中。文\n".encode(), [("é😀", "中。文")]),
        ("a\u2028b\x0bc\x85d\n".encode(), [("a\u2028b\x0bc\x85d",)]),  # only newlines end a line
        (b"", []),
        (b"\n", []),
        (b" \n\t\n\r\n", []),
        (b"\xef\xbb\xbf", []),
    ],
)
def test_documents_of_text_lie_between_blank_lines(content, documents, name, tmp_path):
    found, counts = read(tmp_path, content, name)
    assert found == documents
    assert counts["lines_read"] == len(content.splitlines() if b"\x85" not in content else [content])
    assert set(counts) <= {"lines_read", "documents"}


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_documents_of_jsonl_are_lines(name, tmp_path):
    content = (
        b"\xef\xbb\xbf"
        + jsonl({"text": "a\nb\n\nc"}, {"text": "d", "x": 1})
        + b"\n\r\n"
        + jsonl({"text": " \n"}).strip()
    )
    found, counts = read(tmp_path, content, name)
    assert found == [("a", "b", "c"), ("d",)]
    assert counts == {"lines_read": 5, "documents": 2}


def test_documents_of_jsonl_may_have_another_field(tmp_path):
    rule = ReadingRule(text_field="body", split_lines=False)
    found, counts = read(tmp_path, jsonl({"body": "a", "text": "no"}, {"text": "no"}), "a.jsonl", rule)
    assert (found, counts["lines_rejected_not_json_with_text"]) == ([("a",)], 1)


def test_format_does_not_follow_from_the_folder(tmp_path):
    (tmp_path / "data.jsonl").mkdir()
    assert read(tmp_path / "data.jsonl", b'{"text": 1}\n')[0] == [('{"text": 1}',)]


@pytest.mark.parametrize(
    ("split_lines", "sentences"), [(True, ("One is.", "Two is.", "Mr. X")), (False, ("One is. Two is.", "Mr. X"))]
)
def test_lines_are_paragraphs_or_sentences(split_lines, sentences, tmp_path):
    found, _ = read(tmp_path, b"One is. Two is.\nMr. X\n", rule=ReadingRule(split_lines=split_lines))
    assert found == [sentences]


BAD_LINES = {
    "lines_rejected_not_utf8": [
        b"caf\xe9",
        b"\xff\xfea",
        b"\xed\xa0\x80",
        b"\xc0\xaf",
    ],  # Latin-1, a byte order mark of UTF-16, surrogate, overlong
    "lines_rejected_nul": [b"\0", b"a\0b", b"\xff\xfea\0", b"x" * 1000 + b"\0"],
    "lines_rejected_too_long": [
        b"x" * 101,
        b"x" * 102,
        b"x" * 105,
        b"x" * 106,
        b"x" * 1000,
        b"x" * 105 + b"\r",
    ],
}


@pytest.mark.parametrize(("reason", "line"), [(reason, line) for reason, lines in BAD_LINES.items() for line in lines])
def test_bad_line_is_counted_and_left_out(reason, line, tmp_path):
    rule = ReadingRule(split_lines=False, max_line_bytes=100)
    found, counts = read(tmp_path, b"a\n" + line + b"\nb\n\nc\n", rule=rule)
    assert found == [("a", "b"), ("c",)]
    assert counts == {"lines_read": 5, reason: 1, "documents": 2}


@pytest.mark.parametrize(("reason", "line"), [(reason, line) for reason, lines in BAD_LINES.items() for line in lines])
def test_bad_line_is_refused_where_the_rule_is_strict(reason, line, tmp_path):
    with pytest.raises(ValueError, match=r"A line of the corpus must .* Received: line 2 of .*a\.txt\.") as caught:
        read(tmp_path, b"a\n" + line + b"\nb\n", rule=ReadingRule(max_line_bytes=100, strict=True))
    assert "\n" not in str(caught.value)


BAD_JSON = [
    b"{",
    b"text",
    b"[1]",
    b'"text"',
    b"3",
    b"null",
    b"{}",
    b'{"text": 3}',
    b'{"text": null}',
    b'{"text": ["a"]}',
    b'{"text": "a"} {"text": "b"}',
    b"[" * 100_000,  # too deep for Python's reader
    b'{"n": ' + b"1" * 5000 + b', "text": "a"}',  # more digits than Python converts
]


@pytest.mark.parametrize("line", BAD_JSON)
def test_bad_json_is_counted_or_refused(line, tmp_path):
    content = jsonl({"text": "a"}) + line + b"\n" + jsonl({"text": "b"})
    found, counts = read(tmp_path, content, "a.jsonl")
    assert found == [("a",), ("b",)]
    assert counts == {"lines_read": 3, "lines_rejected_not_json_with_text": 1, "documents": 2}
    with pytest.raises(ValueError, match=r"JSON object with the text field `text`\. Received: line 2 of .*a\.jsonl"):
        read(tmp_path, content, "a.jsonl", ReadingRule(strict=True))


@pytest.mark.parametrize("text", ["\\ud83d", "a \\ude00 b", "\\ude00\\ud83d"])
def test_half_of_a_surrogate_pair_is_called_so(text, tmp_path):
    content = jsonl({"text": "a"}) + b'{"text": "' + text.encode() + b'"}\n' + jsonl({"text": "\U0001f600"})
    found, counts = read(tmp_path, content, "a.jsonl")
    assert found == [("a",), ("\U0001f600",)]
    assert counts == {"lines_read": 3, "lines_rejected_lone_surrogate": 1, "documents": 2}
    expected = r"must hold whole characters, not half of a surrogate pair .* line 2 of .*a\.jsonl"
    with pytest.raises(ValueError, match=expected):
        read(tmp_path, content, "a.jsonl", ReadingRule(strict=True))


@pytest.mark.parametrize("end", [b"\r", b"\r\n", b"\n"])
@pytest.mark.parametrize("last", [b"", b"\n", b"\r"])
@pytest.mark.parametrize("max_line_bytes", [3, 4, 5, 6, 7, 8, 20, 1000])
def test_lines_end_in_any_of_three_ways(end, last, max_line_bytes, tmp_path):
    lines = [b"ab", b"cde", b"", b"f", b"", b"", b"ghi"]
    rule = ReadingRule(split_lines=False, max_line_bytes=max_line_bytes)
    found, counts = read(tmp_path, end.join(lines) + last, rule=rule)
    assert found == [("ab", "cde"), ("f",), ("ghi",)]
    assert counts["lines_read"] == 7
    objects = jsonl({"text": "a"}).replace(b"\n", end) + b'{"text": "b"}' + last
    assert read(tmp_path, objects, "a.jsonl")[0] == [("a",), ("b",)]


def test_two_cr_before_lf_are_one_line_end(tmp_path):
    assert read(tmp_path, b"a\r\r\nb\r\r\n\r\r\nc\r\r\n")[0] == [("a", "b"), ("c",)]


@pytest.mark.slow
def test_many_ends_are_read_in_linear_time_and_memory(tmp_path):
    found, counts = read(tmp_path, b"a" + b"\r" * 3_000_000 + b"b")
    assert (found, counts["lines_read"]) == ([("a",), ("b",)], 3_000_001)


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r", b""])
@pytest.mark.parametrize("line_bytes", range(95, 110))
def test_longest_line_is_read_whole(line_bytes, end, mark, tmp_path):
    line = b"x" * (line_bytes - 1) + b"y"
    found, counts = read(tmp_path, mark + line + end, rule=ReadingRule(split_lines=False, max_line_bytes=100))
    assert found == ([(line.decode(),)] if line_bytes <= 100 else [])
    assert counts["lines_rejected_too_long"] == (line_bytes > 100)


def test_line_of_ten_megabytes_is_counted_and_not_held(tmp_path):
    import tracemalloc

    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"a\n" + b"x" * 10_000_000 + b"\nb\n"))
    counts = Counter()
    tracemalloc.start()
    documents = list(read_documents(str(path), LINES, counts))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [document.sentences for document in documents] == [("a", "b")]
    expected = {"lines_read": 3, "lines_used": 2, "lines_rejected_too_long": 1, "documents": 1}
    assert counts == expected | {"bytes_read": 10_000_005, "bytes_used": 4, "bytes_rejected_too_long": 10_000_001}
    assert peak_bytes < 6_000_000  # the limit is 1 MB, two pieces of it are held at once, and half a MB unpacked


def test_documents_are_read_one_at_a_time(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"a\n\nb\n\n\xff\n")
    documents = read_documents(str(tmp_path / "a.txt"), ReadingRule(strict=True))
    assert next(documents).sentences == ("a",)
    assert next(documents).sentences == ("b",)
    with pytest.raises(ValueError, match="line 5"):
        next(documents)


@pytest.mark.parametrize("suffix", [".txt", ".jsonl"])
def test_lines_are_used_or_blank_or_rejected(suffix, tmp_path):
    used, blank, latin, long, bad = b"word", b"  ", b"\xe9", b"x" * 101, b"{"
    expected = {"lines_read": 17, "lines_used": 7, "lines_blank": 5, "documents": 1, "lines_rejected_too_long": 2}
    if suffix == ".jsonl":
        used, empty = b'{"text": "a"}', b'{"text": " \\n"}'
        expected |= {"lines_read": 24, "lines_blank": 8, "documents": 7, "lines_rejected_not_json_with_text": 4}
    lines = [used] * 7 + [blank] * 5 + [latin] * 3 + [long] * 2
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"\n".join(lines + ([bad] * 4 + [empty] * 3 if suffix == ".jsonl" else [])))
    counts = Counter()
    rule = ReadingRule(split_lines=False, max_line_bytes=100)
    list(read_documents(str(path), rule, counts))
    assert {name: n for name, n in counts.items() if not name.startswith("bytes")} == expected | {
        "lines_rejected_not_utf8": 3
    }
    assert counts["bytes_rejected_not_utf8"] == 3 * len(latin + b"\n")
    assert counts["bytes_read"] == path.stat().st_size


@pytest.mark.parametrize("name", ["cut.txt.gz", "cut.jsonl.gz"])
def test_cut_or_damaged_gzip_names_the_file(name, tmp_path):
    whole = gzip.compress(jsonl(*({"text": f"some text {number}"} for number in range(50))))
    flipped = bytearray(whole)
    flipped[-6] ^= 1  # the checksum at the end
    for content in (
        whole[:5],
        whole[: len(whole) // 2],
        whole[:-1],
        bytes(flipped),
        b"no gzip at all",
        whole + b"rest",
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=rf"A corpus file must be whole\. Received: .*{name}, damaged"):
            list(read_documents(str(tmp_path / name), LINES))


def test_id_depends_on_the_sentences_alone(tmp_path):
    ids = set()
    for name, content in {
        "a.txt": b"one\ntwo\n",
        "b.txt.gz": b"\xef\xbb\xbf one \r\ntwo",
        "c.jsonl": jsonl({"text": "one\n\ntwo"}),
    }.items():
        path = tmp_path / name
        path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        ids |= {document.id for document in read_documents(str(path), LINES)}
    assert ids == {make_document(["one", "two"], False).id}
    assert ids == {"548a8df0278c07912adc703b6150b1d5"}  # pinned: every random choice hangs on it


def test_id_tells_apart_other_texts():
    texts = (["one", "two"], ["two", "one"], ["one two"], ["one"], ["One", "two"], ["onetwo"])
    assert len({make_document(text, False).id for text in texts}) == len(texts)


def test_document_without_text_has_no_sentences():
    assert make_document(["", " \t"], True) == Document(make_document([], False).id, ())

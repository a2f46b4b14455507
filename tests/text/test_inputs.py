import bz2
import gzip
import lzma
import os

import pytest

from keras_bert_flow.results.publishing import Contents, publish
from keras_bert_flow.text.corpus.inputs import (
    SUFFIXES,
    find_ignored,
    find_inputs,
    find_left_out,
    input_format,
    open_input,
)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b.txt", "a.jsonl", "sub/c.txt.gz", "sub/deep/d.jsonl.gz", "sub/notes.md", "part[1].txt", "x y é.txt"):
        path = tmp_path / "corpus" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"text")
    return tmp_path / "corpus"


ALL = ["a.jsonl", "b.txt", "part[1].txt", "sub/c.txt.gz", "sub/deep/d.jsonl.gz", "x y é.txt"]


def under(folder, names):
    return [str(folder / name) for name in names]


def test_inputs_of_a_folder_are_its_corpus_files_sorted(folder):
    assert find_inputs([str(folder)]) == under(folder, ALL)


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("*.txt", ["b.txt", "part[1].txt", "x y é.txt"]),
        ("**/*.gz", ["sub/c.txt.gz", "sub/deep/d.jsonl.gz"]),
        ("[ab].*", ["a.jsonl", "b.txt"]),
        ("part[1].txt", ["part[1].txt"]),  # the name of a file, brackets and all
        ("x y é.txt", ["x y é.txt"]),
    ],
)
def test_inputs_match_globs(folder, pattern, names):
    assert find_inputs([str(folder / pattern)]) == under(folder, names)


def test_inputs_do_not_depend_on_the_order_of_patterns(folder):
    patterns = [str(folder / name) for name in ALL]
    assert find_inputs(patterns) == find_inputs(patterns[::-1]) == find_inputs([str(folder), *patterns])


def test_inputs_are_listed_once_however_they_are_named(folder):
    os.symlink(folder / "b.txt", folder / "again.txt")
    found = find_inputs([str(folder), "corpus", "./corpus/b.txt", "corpus/sub/../b.txt"])
    assert len(found) == len(ALL)
    assert sorted(map(os.path.realpath, found)) == under(folder, ALL)
    assert found == sorted(found)


@pytest.mark.parametrize("pattern", ["nowhere.txt", "*.csv", "corpus/sub/deep/*.txt", "empty"])
def test_inputs_refuse_a_pattern_that_matches_nothing(folder, pattern):
    (folder.parent / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="must be a file, a folder or a glob") as caught:
        find_inputs(["corpus", pattern])
    assert pattern in str(caught.value)


def test_inputs_refuse_another_kind_of_file(folder):
    with pytest.raises(ValueError, match=r"must end in one of \.txt.*notes\.md"):
        find_inputs(["corpus/sub/*"])


def test_open_input_unpacks(tmp_path):
    packed = {".txt": bytes, ".txt.gz": gzip.compress, ".jsonl.bz2": bz2.compress, ".txt.xz": lzma.compress}
    for suffix, pack in packed.items():
        (tmp_path / f"a{suffix}").write_bytes(pack(b"a\n") + pack(b"b"))  # packed files may be joined
        with open_input(str(tmp_path / f"a{suffix}")) as file:
            assert file.readlines() == [b"a\n", b"b"]


def test_open_input_names_what_cannot_be_opened(tmp_path):
    with pytest.raises(ValueError, match=r"Received: .*none\.txt: No such file .* --skip-bad-inputs\.$"):
        open_input(str(tmp_path / "none.txt"))


def test_format_follows_from_the_suffix_alone():
    assert [input_format(name) for name in ("a.jsonl", "a.jsonl.gz")] == [".jsonl", ".jsonl.gz"]
    assert [input_format(name) for name in ("data.jsonl/a.txt", "a.jsonl.txt.gz")] == [".txt", ".txt.gz"]
    assert [input_format(f"x/a.jsonl.txt{suffix}") for suffix in SUFFIXES] == list(SUFFIXES)


def test_remote_path_needs_a_storage():
    with pytest.raises(ValueError, match="needs Apache Beam's filesystems. Received: gs://bucket/a.txt"):
        find_inputs(["gs://bucket/a.txt"])


@pytest.fixture
def with_results(folder):
    """The folder with a store of results in it, one set aside and one being made; a web page; and a model."""

    def fill(work):
        (work / "vocab.txt").write_text("[PAD]")
        (work / "deep").mkdir()
        (work / "deep" / "log.jsonl").write_text("{}")
        return Contents()

    runs = folder / "runs" / "vocabulary"
    publish(runs / "0123456789abcdef", "vocabulary", "0123456789abcdef", fill)
    for name in (".fedcba9876543210.work/a/vocab.txt", "0123456789abcdee.damaged-1/vocab.txt", "../page/page.txt"):
        (runs / name).parent.mkdir(parents=True)
        (runs / name).write_text("text")
    (folder / "runs" / "page" / "manifest.json").write_text('{"name": "a page of the web", "start_url": "/"}')
    (folder / "model").mkdir()
    for name in ("config.json", "model.safetensors", "vocab.txt"):
        (folder / "model" / name).write_text("text")
    (folder / "link").symlink_to(runs)
    (folder / "linked.txt").symlink_to(runs / "0123456789abcdef" / "vocab.txt")
    return folder


TEXT = sorted([*ALL, "runs/page/page.txt"])


def test_results_in_a_folder_of_text_are_left_out(with_results):
    assert find_inputs([str(with_results)]) == under(with_results, TEXT)
    runs = with_results / "runs" / "vocabulary"
    left_out = [".fedcba9876543210.work", "0123456789abcdee.damaged-1", "0123456789abcdef"]
    assert find_left_out([str(with_results)]) == [str(with_results / "model"), *under(runs, left_out)]
    assert find_ignored([str(with_results)]) == under(with_results, ["runs/page/manifest.json", "sub/notes.md"])


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("**/*.txt", [name for name in TEXT if name.endswith(".txt")]),  # also what is behind links
        ("*/*/*.txt", ["runs/page/page.txt"]),
        ("runs/vocabulary/0123456789abcdef", ["runs/vocabulary/0123456789abcdef/vocab.txt"]),
        ("model/vocab.txt", ["model/vocab.txt"]),
    ],
)
def test_globs_lead_to_no_result_and_names_do(with_results, pattern, names):
    found = [path for path in find_inputs([str(with_results / pattern)]) if path.endswith(".txt")]
    assert found == under(with_results, names)


def test_glob_that_leads_to_results_alone_is_refused(with_results):
    with pytest.raises(FileNotFoundError, match="only results of this program: .*0123456789abcde"):
        find_inputs([str(with_results / "runs" / "vocabulary" / "*" / "vocab.txt")])


def test_folder_named_by_a_link_is_read(with_results, tmp_path):
    (tmp_path / "text").symlink_to(with_results)
    assert [os.path.realpath(path) for path in find_inputs([str(tmp_path / "text")])] == under(with_results, TEXT)

"""A corpus in a place that Beam reaches: here a filesystem of Beam's kind that keeps its files in memory."""

import hashlib
import io
import json
import signal
import threading
import time

import pytest
from apache_beam.io.filesystem import BeamIOError, CompressedFile, CompressionTypes, FileMetadata, FileSystem

from beam_jobs import storage as storage_module
from beam_jobs.build_records import build_records
from beam_jobs.storage import BeamStorage
from keras_bert_flow.config.text import CorpusConfig
from keras_bert_flow.results.manifest import read_manifest
from keras_bert_flow.results.stages.keys import corpus_digests
from keras_bert_flow.text.corpus.inputs import SUFFIXES, find_inputs
from tests.beam_jobs.conftest import as_text, make_documents, make_records_config, read_folder
from tests.text.test_unpacking import PACK

FILES: dict[str, bytes] = {}
TIMES: dict[str, float] = {}  # of the last change, for files that have one
OPENED: list[str] = []


class MemoryFileSystem(FileSystem):
    """The reading half of a filesystem at memory://; Beam finds it because it is a subclass."""

    @classmethod
    def scheme(cls):
        return "memory"

    def has_dirs(self):
        return False

    def _list(self, dir_or_prefix):
        for path, content in FILES.items():
            if path.startswith(dir_or_prefix):
                yield FileMetadata(path, len(content or b""))

    def open(self, path, mime_type="application/octet-stream", compression_type=CompressionTypes.AUTO):
        if FILES.get(path) is None:
            raise BeamIOError(f"There is no {path}")
        OPENED.append(path)
        file = io.BytesIO(FILES[path])
        kind = FileSystem._get_compression_type(path, compression_type)
        return file if kind == CompressionTypes.UNCOMPRESSED else CompressedFile(file, kind)

    def exists(self, path):
        return path in FILES

    def join(self, basepath, *paths):
        return "/".join((basepath.rstrip("/"), *paths))

    def split(self, path):
        head, _, tail = path.rpartition("/")
        return head, tail

    def size(self, path):
        return len(FILES[path])

    def metadata(self, path):
        return FileMetadata(path, self.size(path), self.last_updated(path))

    def last_updated(self, path):
        return TIMES.get(path, 0)

    def checksum(self, path):
        return str(len(FILES[path]))

    def mkdirs(self, path): ...

    def create(self, path, mime_type="", compression_type=CompressionTypes.AUTO): ...

    def copy(self, source_file_names, destination_file_names): ...

    def rename(self, source_file_names, destination_file_names): ...

    def delete(self, paths): ...


@pytest.fixture
def remote():
    documents = make_documents()
    FILES.update(
        {
            "memory://bucket/text/a.txt": as_text(documents[::2]).encode(),
            "memory://bucket/text/deep/b.txt.zst": PACK[".zst"](as_text(documents[1::2]).encode()),
            "memory://bucket/text/deep/notes.md": b"# notes",
            "memory://bucket/other.txt": b"other",
        }
    )
    yield ("memory://bucket/text",)
    FILES.clear()


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("memory://bucket/text", ["a.txt", "deep/b.txt.zst"]),
        ("memory://bucket/text/", ["a.txt", "deep/b.txt.zst"]),
        ("memory://bucket/text/*.txt", ["a.txt"]),
        ("memory://bucket/text/deep/b*", ["deep/b.txt.zst"]),
        ("memory://bucket/text/a.txt", ["a.txt"]),
        ("memory://bucket/**/b.*", ["deep/b.txt.zst"]),
    ],
)
def test_storage_finds_files_folders_and_globs(pattern, names, remote):
    assert find_inputs([pattern], BeamStorage()) == [f"memory://bucket/text/{name}" for name in names]


def test_storage_finds_nothing_where_nothing_is(remote):
    with pytest.raises(FileNotFoundError, match="memory://bucket/none"):
        find_inputs(["memory://bucket/none"], BeamStorage())


def test_storage_reaches_this_machine_too(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"a")
    assert BeamStorage().find(str(tmp_path), SUFFIXES) == [str(tmp_path / "a.txt")]
    with BeamStorage().open(str(tmp_path / "a.txt")) as file:
        assert file.read() == b"a"


@pytest.mark.slow
def test_records_of_a_remote_corpus_are_those_of_the_same_files_here(remote, vocabulary_file, tmp_path):
    (tmp_path / "here").mkdir()
    for name, path in {"x.txt": "a.txt", "y.txt.zst": "deep/b.txt.zst"}.items():
        (tmp_path / "here" / name).write_bytes(FILES[f"memory://bucket/text/{path}"])
    contents = []
    for number, inputs in enumerate([remote, (str(tmp_path / "here"),)]):
        corpus = CorpusConfig(input=inputs, lines="sentences")
        output = build_records(corpus, make_records_config(), vocabulary_file, False, tmp_path / str(number))
        contents.append(read_folder(output))
    assert contents[0] == contents[1]  # the manifest with the digests of the inputs as well
    assert read_manifest(output).counters["documents"] == len(make_documents())


def test_remote_file_that_cannot_be_opened_is_named(remote):
    FILES["memory://bucket/text/gone.txt"] = None
    corpus = CorpusConfig(input=remote)
    with pytest.raises(ValueError, match=r"Received: memory://bucket/text/gone\.txt: There is no"):
        corpus_digests(corpus, BeamStorage())
    skipping = corpus.model_copy(update={"skip_bad_inputs": True})
    assert list(corpus_digests(skipping, BeamStorage()).values()).count("unreadable") == 1


def test_remote_file_is_read_once_until_it_changes(remote, monkeypatch):
    def digest(path, content, changed):
        FILES[path], TIMES[path] = content, changed
        OPENED.clear()
        return [*corpus_digests(CorpusConfig(input=(path,)), BeamStorage()).values()], len(OPENED)

    monkeypatch.setattr(f"{__name__}.TIMES", {})
    path, text = "memory://bucket/text/once.txt", hashlib.sha256(b"text").hexdigest()
    assert digest(path, b"text", 1000.0) == ([text], 1)
    assert digest(path, b"text", 1000.0) == ([text], 0)
    assert digest(path, b"TEXT", 1001.0) == ([hashlib.sha256(b"TEXT").hexdigest()], 1)
    now = time.time() + 60  # so new that it may change again within the resolution of its time
    assert [digest(path, b"text", now)[1] for _ in range(2)] == [1, 1]
    assert [digest(path, b"text", 0)[1] for _ in range(2)] == [1, 1]


def test_remote_files_are_read_some_at_a_time(remote, monkeypatch):
    together, read = threading.Barrier(4), MemoryFileSystem.open

    def meet(*arguments, **options):
        together.wait(20)  # for three others
        return read(*arguments, **options)

    paths = tuple(f"memory://bucket/many/{number}.txt" for number in range(8))
    FILES.update({path: path.encode() for path in paths})
    monkeypatch.setattr(MemoryFileSystem, "open", meet)
    expected = sorted(hashlib.sha256(path.encode()).hexdigest() for path in paths)
    assert [*corpus_digests(CorpusConfig(input=paths), BeamStorage()).values()] == expected


def test_reading_remote_files_stops_at_a_signal(remote, monkeypatch):
    class Endless(io.RawIOBase):
        def read(self, size=-1):
            time.sleep(0.01)
            return b"-" * 1000

    paths = ("memory://bucket/many/0.txt", "memory://bucket/many/1.txt")
    FILES.update(dict.fromkeys(paths, b"-"))
    monkeypatch.setattr(BeamStorage, "open", lambda self, path: Endless())
    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.3, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
        corpus_digests(CorpusConfig(input=paths), BeamStorage())
    assert threading.active_count() <= before + 1  # the timer's may be ending


@pytest.mark.parametrize(("scheme", "extra"), [("gs", "gcp"), ("s3", "aws"), ("azfs", "azure")])
def test_missing_extra_is_named_in_one_line(scheme, extra, monkeypatch):
    monkeypatch.setattr(storage_module, "_is_installed", lambda module: False)
    with pytest.raises(
        ValueError, match=rf"needs the module [\w.]+, .*{scheme}://b/a.txt. pip install 'apache-beam\[{extra}\]'$"
    ):
        find_inputs([f"{scheme}://b/a.txt"], BeamStorage())


def test_library_is_looked_for_without_importing_it():
    assert storage_module._is_installed("numpy.linalg")
    assert not storage_module._is_installed("numpy.nothing")
    assert not storage_module._is_installed("nothing.at.all")


def test_unknown_scheme_is_refused_in_one_line():
    with pytest.raises(ValueError, match=r"one of gs://, s3://, .* Received: ftp://b/a\.txt\."):
        find_inputs(["ftp://b/a.txt"], BeamStorage())


def test_results_at_a_remote_place_are_no_text(remote):
    for name in ("runs/vocabulary/0/vocab.txt", "runs/records/1/.work/2/vocab.txt", "page/page.txt"):
        FILES[f"memory://bucket/text/{name}"] = b"text"
    fields = ("stage", "key", "config", "inputs", "files", "counters")
    FILES["memory://bucket/text/runs/vocabulary/0/manifest.json"] = json.dumps(dict.fromkeys(fields)).encode()
    FILES["memory://bucket/text/page/manifest.json"] = b'{"name": "of the web"}'
    names = ["a.txt", "deep/b.txt.zst", "page/page.txt"]
    for pattern, found in (("text", names), ("text/**.txt", ["a.txt", "page/page.txt"])):
        paths = [f"memory://bucket/text/{name}" for name in found]
        assert find_inputs([f"memory://bucket/{pattern}"], BeamStorage()) == paths

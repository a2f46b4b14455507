import json

import pytest

from keras_bert_flow.checks.diagnose import diagnose, find_kind
from keras_bert_flow.config.text import CorpusConfig
from keras_bert_flow.results.manifest import write_manifest
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES
from tests.checks.doctor.test_corpus import GOOD, write
from tests.oracles.plain_records import make_many, publish_plain

CORPUS = CorpusConfig(input=("unused",))
VOCABULARY = "\n".join([*SPECIAL_PIECES, "a", "##a"])


@pytest.fixture
def corpus(tmp_path):
    (tmp_path / "text").mkdir()
    return write(tmp_path / "text" / "a.txt", GOOD)


def test_corpus_is_found_as_file_folder_and_glob(tmp_path, corpus):
    for path in (corpus, str(tmp_path / "text"), str(tmp_path / "text" / "*.txt")):
        assert find_kind(path) == ("corpus", path)
        diagnosis = diagnose(path, CORPUS)
        assert (diagnosis.kind, diagnosis.path, diagnosis.numbers["documents"]) == ("corpus", path, 8)


def test_corpus_is_found_in_a_published_folder(tmp_path, corpus):
    write_manifest(tmp_path / "text", "corpus", "k", {}, {}, {})
    assert find_kind(str(tmp_path / "text"))[0] == "corpus"


@pytest.mark.parametrize("name", ["vocab.txt", "my.vocab.txt", "words.txt"])
def test_vocabulary_is_found_as_file(tmp_path, name):
    (tmp_path / name).write_text(VOCABULARY)
    assert find_kind(str(tmp_path / name)) == ("vocabulary", str(tmp_path / name))
    assert diagnose(str(tmp_path / name), CORPUS).kind == "vocabulary"


def test_damaged_vocabulary_is_found_by_its_name(tmp_path):
    (tmp_path / "vocab.txt").write_text("a\nb\n")
    assert diagnose(str(tmp_path / "vocab.txt"), CORPUS).verdict == "error"


def test_text_that_mentions_special_pieces_is_a_corpus(tmp_path, corpus):
    path = write(tmp_path / "text" / "b.txt", [["[CLS] and [SEP] and [MASK] are words here.", "[PAD]"]])
    assert find_kind(path)[0] == "corpus"


@pytest.mark.parametrize("manifest", [True, False])
def test_vocabulary_is_found_in_its_folder(tmp_path, manifest):
    (tmp_path / "vocab.txt").write_text(VOCABULARY)
    if manifest:
        write_manifest(tmp_path, "vocabulary", "k", {"cased": True}, {}, {})
    diagnosis = diagnose(str(tmp_path), CORPUS)
    assert (diagnosis.kind, diagnosis.path) == ("vocabulary", str(tmp_path / "vocab.txt"))
    assert diagnosis.numbers["cased"] is manifest


@pytest.mark.parametrize(("config", "expected"), [({"do_lower_case": False}, True), ({"do_lower_case": True}, False)])
def test_model_directory_says_its_case(tmp_path, config, expected):
    (tmp_path / "vocab.txt").write_text(VOCABULARY)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    for path in (tmp_path, tmp_path / "vocab.txt"):
        assert diagnose(str(path), CORPUS).numbers["cased"] is expected
    assert diagnose(str(tmp_path), CORPUS, cased=not expected).numbers["cased"] is not expected


@pytest.mark.parametrize("content", ["", "[]", "{", '{"do_lower_case": "no"}'])
def test_case_is_guessed_where_a_file_does_not_say(tmp_path, content):
    (tmp_path / "vocab.txt").write_text(VOCABULARY)
    (tmp_path / "tokenizer_config.json").write_text(content)
    assert diagnose(str(tmp_path), CORPUS).numbers["cased"] is False


@pytest.mark.parametrize("manifest", ["whole", "damaged", "none"])
def test_records_are_found(tmp_path, manifest):
    folder = publish_plain(tmp_path / "records", make_many(10))
    if manifest == "damaged":
        (folder / "manifest.json").write_text("{")
    elif manifest == "none":
        (folder / "manifest.json").unlink()
    diagnosis = diagnose(str(folder), CORPUS, sample=5)
    assert (diagnosis.kind, diagnosis.numbers["records_read"]) == ("records", 5)


def test_folder_of_records_without_a_file_of_records(tmp_path):
    write_manifest(tmp_path, "records", "k", {}, {}, {})
    assert diagnose(str(tmp_path), CORPUS).verdict == "error"


def test_vocabulary_given_goes_to_the_corpus(tmp_path, corpus):
    (tmp_path / "v.txt").write_text(VOCABULARY)
    assert diagnose(corpus, CORPUS, tmp_path / "v.txt").numbers["unknown_tokens"] > 0
    assert "unknown_tokens" not in diagnose(corpus, CORPUS).numbers


def test_what_is_none_of_these_is_refused(tmp_path):
    folder = publish_plain(tmp_path / "records", make_many(10))
    with pytest.raises(ValueError, match=rf"by folder. Received: .*\.tfrecord, a file. Give {folder}"):
        diagnose(str(folder / "train-00000-of-00002.tfrecord"), CORPUS)
    (tmp_path / "model").mkdir()
    write_manifest(tmp_path / "model", "pretraining", "k", {}, {}, {})
    with pytest.raises(ValueError, match="which holds pretraining"):
        diagnose(str(tmp_path / "model"), CORPUS)
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="a tokenizer without vocab.txt. Give it as `--vocab"):
        diagnose(str(tmp_path / "model"), CORPUS)
    (tmp_path / "photo.png").write_bytes(b"x")
    with pytest.raises(ValueError, match="photo.png"):
        diagnose(str(tmp_path / "photo.png"), CORPUS)
    (tmp_path / "empty").mkdir()
    for path in ("nowhere", "no*where.txt", "empty"):
        with pytest.raises(FileNotFoundError, match="must be a file, a folder or a glob"):
            diagnose(str(tmp_path / path), CORPUS)

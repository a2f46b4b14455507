import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from beam_jobs.build_records import build_records
from beam_jobs.build_vocabulary import build_vocabulary, count_words
from beam_jobs.publishing import JobFolders
from beam_jobs.running import job_folder
from keras_bert_flow.config.text import CorpusConfig, VocabularyConfig
from keras_bert_flow.results.manifest import check_folder, read_manifest
from keras_bert_flow.results.stages.data import vocabulary_key, vocabulary_settings
from keras_bert_flow.text.tokenizers.learning import WordPieceWords, choose_words, learn_tokenizer
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import read_vocabulary
from tests.beam_jobs.conftest import as_text, make_corpus, make_documents, make_records_config, names_in
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
SIZE = VocabularyConfig(size=60)


def count_in(folder, corpus, cased):
    return count_words(corpus, WordPieceWords(cased), JobFolders(folder, folder, str(folder)))


def test_count_words_counts_as_a_plain_counter(tmp_path):
    corpus = make_corpus(tmp_path / "a.txt")
    with job_folder(tmp_path) as folder:
        counts, counters = count_in(folder, corpus, cased=False)
    expected = Counter(as_text(make_documents()).split())
    assert counts == dict(expected)
    sentences = sum(map(len, make_documents()))
    size, blank = len(as_text(make_documents())), len(make_documents()) - 1
    assert counters == {
        "bytes_blank": blank,
        "bytes_read": size,
        "bytes_used": size - blank,
        "characters": len("".join(as_text(make_documents()).split())),
        "distinct_words": len(expected),
        "documents": len(make_documents()),
        "files_read": 1,
        "files_used": 1,
        "lines_blank": len(make_documents()) - 1,
        "lines_read": sentences + len(make_documents()) - 1,
        "lines_used": sentences,
        "words": expected.total(),
    }
    assert names_in(tmp_path) == ["a.txt"]


@pytest.mark.slow
def test_count_words_adds_up_one_hot_word_over_files(tmp_path):
    for number in range(5):
        make_corpus(tmp_path / f"{number}.txt", "The the THE.\n\nthe\n" * 200)
    corpus = CorpusConfig(input=(str(tmp_path),))
    assert count_in(tmp_path, corpus, cased=False)[0] == {"the": 4000, ".": 1000}
    assert count_in(tmp_path, corpus, cased=True)[0] == {
        "The": 1000,
        "the": 2000,
        "THE": 1000,
        ".": 1000,
    }


def test_characters_that_no_piece_encodes_are_counted_and_said(tmp_path, caplog):
    thai = "".join(chr(0x0E01 + number % 40) for number in range(250))  # without a space
    corpus = make_corpus(tmp_path / "a.txt", f"{thai}\n\n{thai} กข กข\n\nQ")
    vocabulary = VocabularyConfig(size=60, cased=True, min_character_count=2)
    counters = read_manifest(build_vocabulary(corpus, vocabulary, tmp_path / "v")).counters
    expected = {"characters": 505, "unknown_characters": 501, "long_words": 2, "long_word_characters": 500}
    assert {name: counters[name] for name in expected} == expected
    assert counters["distinct_characters_left_out"] == 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("99.21 % of the characters of the corpus become [UNK]. They are in words of over 200")
    assert "pythainlp" in line


@pytest.mark.slow
def test_vocabulary_that_cuts_long_words_knows_all_of_a_text_without_spaces(tmp_path, caplog):
    thai = "".join(chr(0x0E01 + number * number % 40) for number in range(450))
    corpus = make_corpus(tmp_path / "a.txt", f"{thai}\n\n{thai[7:]} กข\n\n{thai[3:]}")
    vocabulary = VocabularyConfig(size=200, cased=True, long_words="characters")
    folder = build_vocabulary(corpus, vocabulary, tmp_path / "v")
    assert names_in(folder) == ["manifest.json", "tokenizer.json", "tokenizer_config.json"]
    assert read_manifest(folder).counters.keys().isdisjoint({"unknown_characters", "long_words"})
    config = make_records_config(objective="mlm", held_out_fraction=0)
    records = build_records(corpus, config, folder / "tokenizer.json", True, tmp_path / "r")
    counters = read_manifest(records).counters
    assert (counters["unknown_tokens"], counters["characters"]) == (0, 450 + 443 + 2 + 447)
    assert counters["tokens"] < counters["characters"] and not caplog.records


@pytest.mark.slow
def test_han_characters_take_the_pieces_that_nothing_else_needs_and_the_others_are_said(tmp_path, caplog):
    corpus = make_corpus(tmp_path / "a.txt", "".join(map(chr, range(0x4E00, 0x4E28))) * 2)  # 40, twice each
    folder = build_vocabulary(corpus, VocabularyConfig(size=50, max_cjk_characters=10), tmp_path / "all")
    assert sum(piece.startswith("[unused") for piece in read_vocabulary(folder / "vocab.txt")) == 5
    assert "unknown_characters" not in read_manifest(folder).counters and not caplog.records
    folder = build_vocabulary(corpus, VocabularyConfig(size=25, max_cjk_characters=10), tmp_path / "some")
    counters = read_manifest(folder).counters
    expected = {"unknown_characters": 40, "distinct_han": 40, "distinct_han_left_out": 20}
    assert {name: counters[name] for name in expected} == expected
    assert "20 of 40 Han characters have no piece: set vocabulary.max_cjk_characters=40, and vocabulary.size=45" in (
        caplog.text
    )


@pytest.mark.first_form
@pytest.mark.parametrize("size", [60, 2000, *(pytest.param(size, marks=pytest.mark.slow) for size in (50, 200))])
def test_vocabulary_has_the_size_wanted_and_knows_every_word(size, tmp_path):
    corpus = make_corpus(tmp_path / "a.txt")
    folder = build_vocabulary(corpus, VocabularyConfig(size=size), tmp_path / "v")
    pieces = read_vocabulary(folder / "vocab.txt")
    assert len(pieces) == size
    tokenizer = WordPieceTokenizer(pieces)
    assert tokenizer.unk_id not in tokenizer.encode(as_text(make_documents()))


def test_vocabulary_folder_is_whole_without_leftovers_and_is_built_once(tmp_path):
    corpus = make_corpus(tmp_path / "a.txt")
    folder = build_vocabulary(corpus, SIZE, tmp_path / "v")
    manifest = check_folder(folder, "vocabulary")
    assert names_in(folder) == ["manifest.json", "vocab.txt"]
    assert names_in(tmp_path) == ["a.txt", "v"]
    assert manifest.counters["documents"] == len(make_documents())
    before = [(path, path.stat().st_mtime_ns) for path in sorted(folder.iterdir())]
    assert build_vocabulary(corpus, SIZE, folder) == folder
    assert [(path, path.stat().st_mtime_ns) for path in sorted(folder.iterdir())] == before


def test_vocabulary_has_the_same_bytes_however_the_text_is_split(tmp_path):
    whole = build_vocabulary(make_corpus(tmp_path / "a.txt"), SIZE, tmp_path / "v1")
    documents = make_documents()
    for number in range(4):
        make_corpus(tmp_path / "parts" / f"{9 - number}.txt", as_text(documents[number::4]))
    parts = CorpusConfig(input=(str(tmp_path / "parts"),), lines="sentences")
    split = build_vocabulary(parts, SIZE, tmp_path / "v2", ["--direct_runner_bundle_repeat=1"])
    assert (whole / "vocab.txt").read_bytes() == (split / "vocab.txt").read_bytes()


@pytest.mark.slow
def test_count_words_counts_the_same_with_a_small_table(tmp_path, monkeypatch):
    corpus = make_corpus(tmp_path / "a.txt")
    monkeypatch.setattr("beam_jobs.build_vocabulary.MAX_COUNTED", 10)
    assert count_in(tmp_path, corpus, cased=False)[0] == Counter(as_text(make_documents()).split())


@pytest.mark.slow
def test_rarest_words_beyond_the_limit_are_dropped_and_reported(tmp_path, monkeypatch, caplog):
    corpus = make_corpus(tmp_path / "a.txt")
    everything = Counter(as_text(make_documents()).split())
    monkeypatch.setattr("beam_jobs.build_vocabulary.MAX_PLACES", 2000)
    counts, counters = count_in(tmp_path, corpus, cased=False)
    kept = {word: count for word, count in counts.items() if len(word) > 1}
    assert kept.items() <= everything.items()
    assert 0.8 * 2000 < sum(len(word) + 1 for word in kept) < 1.2 * 2000
    assert all(word in counts for word, count in everything.items() if count > 1)
    # The characters of dropped words are counted as words.
    assert Counter("".join(word * count for word, count in counts.items())) == Counter("".join(everything.elements()))
    dropped = [word for word in everything if word not in kept and len(word) > 1]
    assert counters["distinct_words"] == len(everything)
    assert counters["distinct_words_dropped"] == counters["words_dropped"] == len(dropped)  # each of them occurs once
    assert f"the other {len(dropped):,}," in caplog.text
    folder = build_vocabulary(corpus, SIZE, tmp_path / "v")
    assert read_manifest(folder).counters["distinct_words_dropped"] == len(dropped)


@pytest.mark.slow
def test_vocabulary_has_the_same_bytes_with_two_workers(tmp_path):
    documents = make_documents()
    for number in range(4):
        make_corpus(tmp_path / "text" / f"{number}.txt", as_text(documents[number::4]))
    corpus = CorpusConfig(input=(str(tmp_path / "text"),))
    alone = build_vocabulary(corpus, SIZE, tmp_path / "v1")
    command = [sys.executable, "-m", "keras_bert_flow", "vocab", "--input", tmp_path / "text", "--size", "60"]
    options = ["--output", tmp_path / "v2", "--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    subprocess.run([*command, *options], cwd=ROOT, check=True, timeout=PATIENCE_SECONDS, capture_output=True)
    assert (tmp_path / "v2" / "vocab.txt").read_bytes() == (alone / "vocab.txt").read_bytes()


def test_vocabulary_of_a_file_is_checked_and_copied(tmp_path, vocabulary_file):
    corpus = make_corpus(tmp_path / "a.txt")
    folder = build_vocabulary(corpus, VocabularyConfig(file=str(vocabulary_file)), tmp_path / "v")
    assert (folder / "vocab.txt").read_bytes() == vocabulary_file.read_bytes()
    vocabulary_file.write_text("a\nb\n")
    with pytest.raises(ValueError, match=r"must hold \[PAD\]"):
        build_vocabulary(corpus, VocabularyConfig(file=str(vocabulary_file)), tmp_path / "w")
    assert not (tmp_path / "w").exists()


@pytest.mark.first_form
@pytest.mark.parametrize(
    ("text", "settings", "size", "message"),
    [
        ("", {}, 60, r"must hold text\. Received: .*a\.txt, without a word; all of it empty\. Check the input\.$"),
        pytest.param("\n \n\n", {}, 60, "must hold text.*; blank lines only", marks=pytest.mark.slow),
        ("\x07\n", {}, 60, "must hold text.*; 1 of controls, format characters or accents alone"),
        ("\0\n", {}, 60, r"At most 1 %.*2 of 2 bytes \(100\.00 %\) rejected: 2 bytes in 1 line with NUL bytes"),
        (
            "\0\n",
            {"max_rejected_share": 1},
            60,
            r"must hold text\..*2 bytes in 1 line with NUL.* Leave out binary files",
        ),
        ("abcdefghij\n", {}, 12, r"must have room for 5 special pieces and 20 characters"),
        (
            b"a\ncaf\xe9\n",
            {"strict": True},
            60,
            r"must be UTF-8\. Received: line 2 of .*a\.txt\. Fix it or drop --strict\.$",
        ),
        ("x" * 300, {"strict": True, "max_line_bytes": 200}, 60, r"must have at most 200 bytes\. Received: line 1 of"),
    ],
)
def test_vocabulary_of_bad_input_is_refused_in_one_line(text, settings, size, message, tmp_path):
    corpus = make_corpus(tmp_path / "a.txt", text, **settings)
    with pytest.raises(ValueError, match=message) as caught:
        build_vocabulary(corpus, VocabularyConfig(size=size), tmp_path / "out" / "v")
    assert "\n" not in str(caught.value) and "while running" not in str(caught.value)
    assert names_in(tmp_path / "out") == []


def test_vocabulary_of_a_cut_gzip_names_the_file(tmp_path):
    import gzip

    corpus = make_corpus(tmp_path / "a.txt.gz", gzip.compress(as_text(make_documents()).encode())[:-9])
    with pytest.raises(
        ValueError, match=r"must be whole\. Received: .*a\.txt\.gz, damaged.*or leave it out by --skip-bad-inputs\.$"
    ):
        build_vocabulary(corpus, SIZE, tmp_path / "v")
    assert names_in(tmp_path) == ["a.txt.gz"]


def test_vocabulary_counts_rejected_lines(tmp_path):
    corpus = make_corpus(
        tmp_path / "a.txt", b"a b\ncaf\xe9\nc\n\n" + b"x" * 300 + b"\nd\n", max_line_bytes=200, max_rejected_share=1
    )
    manifest = check_folder(build_vocabulary(corpus, SIZE, tmp_path / "v"))
    expected = {"lines_read": 6, "lines_rejected_not_utf8": 1, "lines_rejected_too_long": 1, "documents": 2, "words": 4}
    assert expected.items() <= manifest.counters.items()


def test_byte_level_vocabulary_is_that_of_the_text_and_records_are_made_with_it(tmp_path):
    corpus = make_corpus(tmp_path / "a.txt")
    vocabulary = VocabularyConfig(kind="bpe", size=320)
    folder = build_vocabulary(corpus, vocabulary, tmp_path / "v")
    assert names_in(folder) == ["manifest.json", "tokenizer.json", "tokenizer_config.json"]
    assert read_manifest(folder).config["kind"] == "bpe"
    words = choose_words(vocabulary)
    counted = Counter(word for document in make_documents() for word in words(" ".join(document)))
    learn_tokenizer(counted, vocabulary).write(tmp_path)
    assert (folder / "tokenizer.json").read_bytes() == (tmp_path / "tokenizer.json").read_bytes()
    parts = make_corpus(tmp_path / "parts" / "0.txt")
    again = build_vocabulary(parts, vocabulary, tmp_path / "again", ["--direct_runner_bundle_repeat=1"])
    assert (folder / "tokenizer.json").read_bytes() == (again / "tokenizer.json").read_bytes()
    config = make_records_config(objective="mlm", held_out_fraction=0)
    records = build_records(corpus, config, folder / "tokenizer.json", True, tmp_path / "r")
    assert read_manifest(records).counters.get("unknown_tokens", 0) == 0


def test_kind_is_in_no_key_of_a_word_piece_vocabulary(tmp_path):
    corpus = make_corpus(tmp_path / "a.txt")
    assert "kind" not in vocabulary_settings(corpus, SIZE)["vocabulary"]
    assert vocabulary_key(corpus, SIZE) != vocabulary_key(corpus, VocabularyConfig(kind="bpe", cased=False, size=300))

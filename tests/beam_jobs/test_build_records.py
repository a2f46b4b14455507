import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from beam_jobs.instances import DOCUMENTS_A_POOL, PACKED_DOCUMENTS, CorpusSize, place_documents
from keras_bert_flow.checks.diagnose import examine_records
from keras_bert_flow.config.text import CorpusConfig
from keras_bert_flow.records.example import decode_record
from keras_bert_flow.records.tfrecord import TFRecordFile
from keras_bert_flow.results.manifest import check_folder
from keras_bert_flow.text.corpus.documents import ID_BYTES
from keras_bert_flow.text.masking import MASK_SHARE
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import write_vocabulary
from tests.beam_jobs.conftest import (
    as_text,
    build,
    make_corpus,
    make_documents,
    names_in,
    read_folder,
)
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
PARTS = ("train", "held_out")


def read_part(folder, part):
    """Return every record of a part with its features, the masked tokens put back as `original`."""
    records = []
    for path in sorted(folder.glob(f"{part}-*.tfrecord")):
        for record in TFRecordFile(path):
            features = dict(decode_record(record))
            weights = features["masked_lm_weights"] > 0
            original = features["input_ids"].copy()
            original[features["masked_lm_positions"][weights]] = features["masked_lm_ids"][weights]
            records.append(features | {"original": original[features["input_mask"] > 0], "count": int(weights.sum())})
    return records


def documents_in(records, tokenizer):
    """Return the numbers of the documents that the records hold sentences of."""
    pieces = [tokenizer.pieces[token] for record in records for token in record["original"]]
    return {int(piece[1:].split("s")[0]) for piece in pieces if piece.startswith("d") and "s" in piece}


def tokenizer_of(folder):
    return WordPieceTokenizer.from_file(folder / "vocab.txt")


def test_records_folder_is_whole_and_holds_no_leftovers(built):
    manifest = check_folder(built, "records")
    shards = [f"{part}-{n:05d}-of-{of:05d}.tfrecord" for part, of in (("held_out", 1), ("train", 2)) for n in range(of)]
    assert names_in(built) == sorted([*shards, *(f"{name}.index" for name in shards), "manifest.json", "vocab.txt"])
    assert names_in(built.parent) == ["a.txt", "records", "words.txt"]
    for part in PARTS:
        counted = sum(file.records or 0 for file in manifest.files if file.name.startswith(part))
        assert counted == len(read_part(built, part)) == manifest.counters[f"instances_{part}"]


def test_records_counters_add_up(built):
    counters = check_folder(built).counters
    records = [record for part in PARTS for record in read_part(built, part)]
    documents = make_documents()
    assert counters["documents"] == len(documents) == counters["documents_train"] + counters["documents_held_out"]
    assert counters["sentences"] == sum(map(len, documents))
    assert counters["tokens"] == sum(len(sentence.split()) for document in documents for sentence in document)
    assert counters["lines_read"] == counters["sentences"] + len(documents) - 1
    assert counters["documents_of_one_sentence"] == sum(len(document) == 1 for document in documents)
    assert counters["unknown_tokens"] == counters["duplicate_documents"] == counters["random_next_that_follows"] == 0
    assert "unknown_characters" not in counters
    assert counters["instance_tokens"] == sum(len(record["original"]) for record in records)
    assert counters["masked_tokens"] == sum(record["count"] for record in records)
    assert counters["random_next"] == sum(int(record["next_sentence_labels"][0]) for record in records)


def test_lost_characters_and_pairs_that_follow_are_counted_and_said(vocabulary_file, tmp_path, caplog):
    lines = ["a b c", "d e f", "g a b", "हिन्दी", "b c d"]
    copies = [[*lines, f"a d{number}s0"] for number in range(20)]  # which differ in the last line
    corpus = make_corpus(tmp_path / "a.txt", as_text(copies))
    counters = check_folder(build(corpus, vocabulary_file, tmp_path / "r", duplication=3)).counters
    assert counters["characters"] == sum(len("".join(line.split())) for document in copies for line in document)
    assert (counters["unknown_characters"], counters["stripped_characters"]) == (20 * 6, 20)
    found = [record.getMessage() for record in caplog.records]
    assert [line.split(" of the ")[1][:10] for line in found] == ["characters"] * 2 + ["pairs labe"]
    follow = counters["random_next_that_follows"] / counters["random_next"]
    assert 0.05 < follow < 0.3 and found[2].startswith(f"{100 * follow:.2f} %")
    near_copies = next(f for f in examine_records(tmp_path / "r").findings if f.what == "labels by text")
    assert near_copies.verdict != "ok" and "near copies" in near_copies.remedy


def test_held_out_documents_are_never_in_train(built):
    train, held_out = (documents_in(read_part(built, part), tokenizer_of(built)) for part in PARTS)
    assert train.isdisjoint(held_out)
    assert len(train) > len(held_out) > 1
    assert train | held_out <= set(range(len(make_documents())))


def test_records_are_padded_pairs_with_masks(built):
    tokenizer = tokenizer_of(built)
    for record in [*read_part(built, "train"), *read_part(built, "held_out")]:
        length = len(record["original"])
        assert all(len(record[name]) == 32 for name in ("input_ids", "input_mask", "segment_ids"))
        assert all(len(record[f"masked_lm_{name}"]) == 5 for name in ("positions", "ids", "weights"))
        assert record["input_mask"].tolist() == [1] * length + [0] * (32 - length)
        assert not record["input_ids"][length:].any() and not record["segment_ids"][length:].any()
        first, second = np.flatnonzero(record["original"] == tokenizer.sep_id)
        assert record["original"][0] == tokenizer.cls_id and second == length - 1
        assert record["segment_ids"][:length].tolist() == [0] * (first + 1) + [1] * (second - first)
        assert record["count"] == min(5, max(1, round(0.15 * length)))
        assert np.all(np.diff(record["masked_lm_positions"][: record["count"]]) > 0)
        assert not record["masked_lm_positions"][record["count"] :].any()


def test_records_label_a_second_segment_random_that_is_from_another_document(built):
    tokenizer = tokenizer_of(built)
    for record in read_part(built, "train"):
        sides = [record["original"][record["segment_ids"][: len(record["original"])] == side] for side in (0, 1)]
        first, second = (documents_in([{"original": side}], tokenizer) for side in sides)
        if first and second:  # truncation can cut the word that tells
            assert (first != second) == bool(record["next_sentence_labels"][0])


def test_records_are_masked_and_random_at_their_rates(corpus, vocabulary_file, tmp_path):
    folder = build(corpus, vocabulary_file, tmp_path / "r", duplication=20, held_out_fraction=0)
    records, tokenizer = read_part(folder, "train"), tokenizer_of(folder)
    masked = [record["input_ids"][record["masked_lm_positions"][: record["count"]]] for record in records]
    hidden, total = int(np.sum(np.concatenate(masked) == tokenizer.mask_id)), sum(map(len, masked))
    assert stats.binomtest(hidden, total, MASK_SHARE).pvalue > 0.001  # the seed is fixed: always or never
    # Half of the pairs of two or more sentences are random, and all of single ones: between 50 % and 50 % + singles.
    random_share = np.mean([record["next_sentence_labels"][0] for record in records])
    error = 3.3 * 0.5 / np.sqrt(len(records))  # p < 0.001
    assert 0.5 - error < random_share < 0.8
    positions = np.concatenate([record["masked_lm_positions"][: record["count"]] for record in records])
    assert len(np.unique(positions)) > 25  # anywhere in the 32 places


@pytest.mark.slow
def test_copies_of_a_document_have_other_masks(corpus, vocabulary_file, tmp_path):
    folder = build(corpus, vocabulary_file, tmp_path / "r", duplication=4, held_out_fraction=0)
    ids = [record["input_ids"].tobytes() for record in read_part(folder, "train")]
    assert len(set(ids)) > 0.9 * len(ids)  # a few short pairs come out alike


def test_duplicate_documents_are_used_once(built, vocabulary_file, tmp_path):
    text = as_text([*make_documents(), *make_documents()[:7], make_documents()[0]])
    folder = build(make_corpus(tmp_path / "twice.txt", text), vocabulary_file, tmp_path / "r")
    assert check_folder(folder).counters["duplicate_documents"] == 8
    for name, content in read_folder(built).items():
        if name.endswith(".tfrecord"):
            assert (folder / name).read_bytes() == content


@pytest.mark.slow
def test_whole_words_are_masked_where_asked(tmp_path):
    words = ["aa", "bbb", "cc"]
    write_vocabulary(tmp_path / "v.txt", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abc", "##a", "##b", "##c"])
    corpus = make_corpus(
        tmp_path / "a.txt", as_text([[" ".join(words), "aa cc", "bbb bbb"], ["cc cc aa", "bbb"], ["aa"] * 9])
    )
    folder = build(
        corpus, tmp_path / "v.txt", tmp_path / "r", mask_unit="word", masked_fraction=0.5, held_out_fraction=0
    )
    tokenizer = tokenizer_of(folder)
    for record in read_part(folder, "train"):
        chosen = set(record["masked_lm_positions"][: record["count"]].tolist())
        starts = np.flatnonzero(tokenizer.starts_word[record["original"]])
        for start, end in zip(starts, [*starts[1:], len(record["original"])], strict=True):
            assert chosen.isdisjoint(range(start, end)) or chosen.issuperset(range(start, end))


@pytest.mark.parametrize("held_out_fraction", [0.0, 0.02, 0.2, 0.9])
def test_pools_hold_enough_documents_to_choose_from(held_out_fraction):
    total = 20_000
    documents = [number.to_bytes(ID_BYTES, "big") for number in range(total)]
    placed = place_documents(documents, CorpusSize(total, 0, 0), held_out_fraction, 1)
    pools = Counter(item[:-ID_BYTES] for _, items in placed for item in items)  # the first byte is 1 where held out
    sizes = {part: [count for pool, count in pools.items() if pool[0] == part] for part in (0, 1)}
    assert abs(sum(sizes[1]) - total * held_out_fraction) < 4 * np.sqrt(total * 0.25)
    for part in filter(sizes.get, sizes):
        assert 0.9 * DOCUMENTS_A_POOL < np.mean(sizes[part]) < 2 * DOCUMENTS_A_POOL
        assert min(sizes[part]) > DOCUMENTS_A_POOL / 2  # four standard deviations of a Poisson number


@pytest.mark.parametrize(("text_bytes", "expected"), [(100, PACKED_DOCUMENTS), (5_000, 200), (1_000_000, 64)])
def test_pools_whose_texts_share_rows_hold_more_short_documents(text_bytes, expected):
    total = 20_000
    documents = [number.to_bytes(ID_BYTES, "big") for number in range(total)]
    placed = place_documents(documents, CorpusSize(total, total * text_bytes, 0), 0.0, 1, is_packed=True)
    pools = {item[:-ID_BYTES] for _, items in placed for item in items}
    assert abs(total / len(pools) - expected) < 0.1 * expected


# Bad input


@pytest.mark.first_form
@pytest.mark.parametrize(
    ("text", "settings", "message"),
    [
        ("", {}, "two or more different documents to train on.*with 0 to train on"),
        pytest.param("\n\n", {}, "with 0 to train on", marks=pytest.mark.slow),
        ("a b\nc d\na c\nb d\n", {}, "two or more different documents.*with 1 to train on and 0 held out"),
        ("a b\nc d\n\n a b \nc d\n", {}, "with 1 to train on"),  # twice the same
        (
            b"a\n\nb\n\ncaf\xe9\n",
            {"strict": True},
            r"must be UTF-8\. Received: line 5 of .*a\.txt\. Fix it or drop --strict\.$",
        ),
    ],
)
def test_records_of_bad_text_are_refused_in_one_line(text, settings, message, vocabulary_file, tmp_path):
    corpus = make_corpus(tmp_path / "a.txt", text, **settings)
    with pytest.raises(ValueError, match=message) as caught:
        build(corpus, vocabulary_file, tmp_path / "out" / "r", held_out_fraction=0)
    assert "\n" not in str(caught.value) and "while running" not in str(caught.value)
    assert names_in(tmp_path / "out") == []


@pytest.mark.slow
def test_records_of_bad_text_are_refused_in_one_line_by_worker_processes(vocabulary_file, tmp_path):
    (tmp_path / "a.jsonl.gz").write_bytes(b"no gzip")
    options = ["--direct_num_workers=2", "--direct_running_mode=multi_processing"]
    corpus = CorpusConfig(input=(str(tmp_path / "a.jsonl.gz"),))
    with pytest.raises(
        ValueError,
        match=r"must be whole\. Received: .*a\.jsonl\.gz, damaged: .*or leave it out by --skip-bad-inputs\.$",
    ) as caught:
        build(corpus, vocabulary_file, tmp_path / "out" / "r", options=options)
    assert "\n" not in str(caught.value)
    assert names_in(tmp_path / "out") == []


@pytest.mark.slow
def test_records_print_nothing_of_beam(vocabulary_file, tmp_path):
    make_corpus(tmp_path / "a.txt", b"caf\xe9")
    code = (
        "import sys; from beam_jobs.build_records import *; from keras_bert_flow.config.text import *\n"
        "from keras_bert_flow.config.text import *\n"
        "corpus = CorpusConfig(input=(sys.argv[1],), strict=True)\n"
        "try: build_records(corpus, RecordsConfig(), sys.argv[2], False, sys.argv[3])\n"
        "except ValueError as error: print(error)"
    )
    command = [sys.executable, "-c", code, tmp_path / "a.txt", vocabulary_file, tmp_path / "r"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert done.stderr == ""
    assert done.stdout.count("\n") == 1 and "must be UTF-8" in done.stdout


def test_records_name_a_missing_vocabulary(corpus, tmp_path):
    with pytest.raises(FileNotFoundError, match="must be a file"):
        build(corpus, tmp_path / "none.txt", tmp_path / "r")
    assert not (tmp_path / "r").exists()

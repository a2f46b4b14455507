"""Records of tokenizers that a `tokenizer.json` holds, against the library that wrote it."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from transformers import BertTokenizerFast

from beam_jobs.build_records import build_records
from beam_jobs.build_vocabulary import build_vocabulary
from keras_bert_flow.checks.diagnose import diagnose
from keras_bert_flow.cli.options import resolve_case
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.text import VocabularyConfig
from keras_bert_flow.data.order import restore_tokens
from keras_bert_flow.data.pretraining_records import PretrainingRecords, RecordsFolder, show_examples
from keras_bert_flow.results.stages.data import records_key
from keras_bert_flow.text.tokenizers.files import find_difference, read_tokenizer_file
from tests.beam_jobs.conftest import build, make_corpus, make_documents, make_records_config, read_folder
from tests.oracles.other_tokenizers import make_byte_level, make_unigram

MAKERS = {"byte-level": (make_byte_level, "Ġ"), "unigram": (make_unigram, "▁")}
PARTS = ("train", "held_out")


@pytest.fixture(scope="module", params=MAKERS)
def case(request, tmp_path_factory):
    """The library's tokenizer, the mark before a word, its file, the corpus, and records with whole words masked."""
    make, mark = MAKERS[request.param]
    made, place = make(), tmp_path_factory.mktemp(request.param)
    made.save(str(place / "tokenizer.json"))
    corpus = make_corpus(place / "corpus.txt")
    settings = {"objective": "mlm", "duplication": 1, "mask_unit": "word", "max_predictions": 12}
    return (
        made,
        mark,
        place / "tokenizer.json",
        corpus,
        build(corpus, place / "tokenizer.json", place / "r", **settings),
    )


def read_rows(folder: Path, sequence_length: int | None = None) -> list[dict[str, np.ndarray]]:
    parts = [PretrainingRecords(folder, part, sequence_length=sequence_length) for part in PARTS]
    return [records[number] for records in parts for number in range(len(records))]


@pytest.mark.first_form
def test_records_hold_what_the_library_encodes(case):
    made, mark, file, corpus, folder = case
    special, found = [made.token_to_id(token) for token in ("<s>", "</s>", "[CLS]", "[SEP]")], Counter()
    for row in read_rows(folder):
        found.update(restore_tokens(row)[: row["input_mask"].sum()].tolist())
    for number in special:
        found.pop(number, None)
    texts = [f"{' ' * (number > 0)}{text}" for document in make_documents() for number, text in enumerate(document)]
    encoded = made.encode_batch(texts, add_special_tokens=False)
    assert found == Counter(number for encoding in encoded for number in encoding.ids)
    assert (folder / "tokenizer.json").read_text() == file.read_text() and not (folder / "vocab.txt").exists()
    errors = [finding.what for finding in diagnose(str(folder), corpus).findings if finding.verdict == "error"]
    assert errors == (["unknown characters"] if mark == "▁" else [])  # that Unigram was trained without some letters
    assert "[MASK: " in show_examples(folder)


@pytest.mark.slow
@pytest.mark.parametrize("sequence_length", [None, 16])
def test_whole_words_are_masked(case, sequence_length):
    """They begin at a mark, or behind a special token; drawn by the job, and anew from its records."""
    made, mark, _, _, folder = case
    masked = 0
    for row in read_rows(folder, sequence_length):
        tokens, places = restore_tokens(row), row["masked_lm_positions"][row["masked_lm_weights"] > 0].tolist()
        pieces = [made.id_to_token(token) for token in tokens[: row["input_mask"].sum()].tolist()]
        special = {number for number, piece in enumerate(pieces) if piece in ("<s>", "</s>", "[CLS]", "[SEP]")}
        starts = [piece.startswith(mark) or number - 1 in special for number, piece in enumerate(pieces)]
        words, masked = np.cumsum(starts), masked + len(places)
        chosen = {words[place] for place in places}
        missing = set(np.flatnonzero(np.isin(words, [*chosen])).tolist()) - special - {*places}
        assert not missing or len(chosen) == 1  # one word may be longer than all that may be chosen
    assert masked > 100


@pytest.mark.slow
def test_pairs_are_refused_where_two_separators_part_them(corpus, tmp_path):
    make_byte_level().save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=r"Received: objective=mlm_sop, a tokenizer with 2. Use the objective mlm"):
        build(corpus, tmp_path / "tokenizer.json", tmp_path / "r", objective="mlm_sop")
    make_unigram().save(str(tmp_path / "tokenizer.json"))
    build(corpus, tmp_path / "tokenizer.json", tmp_path / "r", objective="mlm_sop")


@pytest.mark.slow
def test_wordpiece_of_a_json_is_that_of_its_vocabulary(corpus, vocabulary_file, tmp_path):
    BertTokenizerFast(str(vocabulary_file)).save_pretrained(tmp_path / "theirs")
    file = tmp_path / "theirs" / "tokenizer.json"
    (tmp_path / "theirs" / "vocab.txt").unlink(missing_ok=True)
    of_json, of_text = build(corpus, file, tmp_path / "a"), build(corpus, vocabulary_file, tmp_path / "b")
    first, second = read_folder(of_json), read_folder(of_text)
    first.pop("manifest.json"), second.pop("manifest.json")  # which have the keys
    assert first == second
    with pytest.raises(ValueError, match=r"`cased` must be as the tokenizer has it. Received: true, .* of false"):
        build_vocabulary(corpus, VocabularyConfig(file=str(file), cased=True), tmp_path / "v")
    build_vocabulary(corpus, VocabularyConfig(file=str(file)), tmp_path / "v")
    assert (tmp_path / "v" / "vocab.txt").read_bytes() == vocabulary_file.read_bytes()


def test_vocabulary_stage_hands_a_tokenizer_on(case, tmp_path):
    _, _, file, corpus, _ = case
    folder = build_vocabulary(corpus, VocabularyConfig(file=str(file)), tmp_path / "v")
    assert (folder / "tokenizer.json").read_text() == file.read_text()


def test_settings_beside_a_tokenizer_count(tmp_path, corpus):
    arguments = (corpus, make_records_config(objective="mlm"), tmp_path / "tokenizer.json", False, 1)
    make_byte_level().save(str(tmp_path / "tokenizer.json"))
    before = records_key(*arguments)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"mask_token": "the"}))
    assert records_key(*arguments) != before


@pytest.fixture
def corpus(tmp_path):
    return make_corpus(tmp_path / "corpus.txt")


def test_what_stands_beside_a_vocabulary_travels_with_it(corpus, vocabulary_file, tmp_path):
    """Case by itself; accents and added tokens into the key, the manifest and the files of the records."""
    place = tmp_path / "model"
    place.mkdir()
    file = place / "vocab.txt"
    file.write_bytes(vocabulary_file.read_bytes())
    rules = {"strip_accents": True, "additional_special_tokens": ["[E1]"]}
    (place / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False} | rules))
    settings = resolve_case(PipelineConfig(), file)
    assert settings.vocabulary.cased
    records = make_records_config()
    with pytest.raises(ValueError, match="`cased` must be as the tokenizer has it. Received: false"):
        build_records(corpus, records, file, False, tmp_path / "r")
    folder = Path(build_records(corpus, records, file, settings.vocabulary.cased, tmp_path / "r"))
    config = json.loads((folder / "manifest.json").read_text())["config"]
    assert config["cased"] and config["tokenizer"]["strip_accents"] is True
    assert [token["content"] for token in config["tokenizer"]["added_tokens"]] == ["[E1]"]
    made, given = PretrainingRecords(folder).read_tokenizer(), read_tokenizer_file(file)
    assert find_difference(made, given) is None and made.vocabulary_size == config["vocabulary_size"]
    assert (folder / "vocab.txt").read_bytes() == file.read_bytes()
    keys = [records_key(corpus, records, path, True, 1) for path in (file, vocabulary_file)]
    assert keys[0] != keys[1]
    RecordsFolder(folder).check_vocabulary(config["vocabulary_size"], file)
    with pytest.raises(ValueError, match="must be made with the model's tokenizer"):
        RecordsFolder(folder).check_vocabulary(config["vocabulary_size"], vocabulary_file)


def test_a_setting_that_was_given_counts(vocabulary_file):
    given = PipelineConfig(vocabulary={"cased": True})
    assert resolve_case(given, vocabulary_file).vocabulary.cased
    assert not resolve_case(PipelineConfig(), vocabulary_file).vocabulary.cased

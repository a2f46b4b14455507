import os

import pytest

from beam_jobs.build_vocabulary import build_vocabulary
from keras_bert_flow.config.text import VocabularyConfig
from tests.beam_jobs.conftest import as_text, build, make_corpus, make_documents


@pytest.mark.parametrize(("umask", "mode"), [(0o027, 0o640), pytest.param(0o022, 0o644, marks=pytest.mark.slow)])
def test_published_text_and_records_follow_the_umask(vocabulary_file, tmp_path, umask, mode):
    corpus = make_corpus(tmp_path / "corpus.txt", as_text(make_documents(12)))
    before = os.umask(umask)
    try:
        words = build_vocabulary(corpus, VocabularyConfig(size=80), tmp_path / "words")
        records = build(corpus, vocabulary_file, tmp_path / "records")
    finally:
        os.umask(before)
    for folder in (words, records):
        modes = {path.name: path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()}
        assert "manifest.json" in modes and "vocab.txt" in modes
        assert set(modes.values()) == {mode}, modes

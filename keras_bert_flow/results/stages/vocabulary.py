"""The stage that learns the vocabulary of a corpus."""

from typing import Any

from keras_bert_flow.config.text import CorpusConfig, VocabularyConfig
from keras_bert_flow.results.stages.keys import NOT_IN_KEYS, Stage, corpus_digests, digest_tokenizer
from keras_bert_flow.text.corpus.inputs import LOCAL, Storage
from keras_bert_flow.text.tokenizers.files import describe_beside

VOCABULARY = Stage("vocabulary", "vocab", made_by="beam_jobs.build_vocabulary", revision=1, reads_text=True)


def vocabulary_key(corpus: CorpusConfig, vocabulary: VocabularyConfig, storage: Storage = LOCAL) -> str:
    settings = vocabulary_settings(corpus, vocabulary)
    file = vocabulary.file
    inputs = corpus_digests(corpus, storage) if file is None else digest_tokenizer(file, "file")
    settings |= {} if file is None else describe_beside(file)
    return VOCABULARY.make_key(settings, inputs)


def vocabulary_settings(corpus: CorpusConfig, vocabulary: VocabularyConfig) -> dict[str, Any]:
    """Return the settings that are part of the key of a vocabulary that is learnt."""
    return {"corpus": corpus.model_dump(exclude=NOT_IN_KEYS), "vocabulary": vocabulary.model_dump(exclude={"file"})}

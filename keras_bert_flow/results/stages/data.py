"""The stages that make data: the built-in corpus as files, the vocabulary of a corpus, and masked records of it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from keras_bert_flow.config.limits import BUILTIN
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.text import CorpusConfig, RecordsConfig, VocabularyConfig
from keras_bert_flow.files.paths import check_local
from keras_bert_flow.results.artifacts import file_digest
from keras_bert_flow.results.publishing import Contents, published, verify
from keras_bert_flow.results.stages.keys import NOT_IN_KEYS, Stage, corpus_digests, digest_tokenizer
from keras_bert_flow.text.corpus.builtin import builtin_digest, write_builtin_corpus, write_builtin_task
from keras_bert_flow.text.corpus.inputs import LOCAL, Storage
from keras_bert_flow.text.tokenizers.files import describe_beside
from keras_bert_flow.text.vocabulary import WORD_PIECE

CORPUS = Stage("corpus", "corpus", made_by="keras_bert_flow.results.stages.data", revision=1)


def corpus_key() -> str:
    """Return the content key of the built-in corpus and task as files."""
    return CORPUS.make_key({}, {"packages": builtin_digest()})


def resolve_builtin(config: PipelineConfig, corpus_folder: Path) -> PipelineConfig:
    """Replace the word `builtin` in a configuration by the files of the built-in corpus and task."""
    corpus, task = config.corpus, config.task
    if BUILTIN in corpus.input:
        files = tuple(str(corpus_folder / "corpus.txt") if item == BUILTIN else item for item in corpus.input)
        corpus = corpus.model_copy(update={"input": files})
    if task.train == BUILTIN:
        tables = {"train": str(corpus_folder / "train.tsv"), "dev": str(corpus_folder / "dev.tsv")}
        task = task.model_copy(update={**tables, "header": True, "text": "text", "text_pair": None, "label": "label"})
    return config.model_copy(update={"corpus": corpus, "task": task})


def publish_builtin(output: str | Path) -> Path:
    """Publish a folder with `corpus.txt`, `train.tsv` and `dev.tsv`, unless it already exists.

    The built-in text is then handled like any other.

    Raises:
        FileNotFoundError: a package whose docstrings it needs is not installed; the message names the install line.
    """
    with published(output, CORPUS.name, corpus_key(), revision=CORPUS.revision) as work:
        if work is not None:
            write_builtin_corpus(work.folder)
            write_builtin_task(work.folder)
            work.contents = Contents(inputs={"packages": builtin_digest()})
    return check_local(output)


VOCABULARY = Stage("vocabulary", "vocab", made_by="beam_jobs.build_vocabulary", revision=1, reads_text=True)


def vocabulary_key(corpus: CorpusConfig, vocabulary: VocabularyConfig, storage: Storage = LOCAL) -> str:
    settings = vocabulary_settings(corpus, vocabulary)
    file = vocabulary.file
    inputs = corpus_digests(corpus, storage) if file is None else digest_tokenizer(file, "file")
    settings |= {} if file is None else describe_beside(file)
    return VOCABULARY.make_key(settings, inputs)


def vocabulary_settings(corpus: CorpusConfig, vocabulary: VocabularyConfig) -> dict[str, Any]:
    """Return the settings that are part of the key of a vocabulary that is learnt."""
    described = {name: value for name, value in describe_vocabulary(vocabulary).items() if name != "file"}
    return {"corpus": corpus.model_dump(exclude=NOT_IN_KEYS), "vocabulary": described}


def describe_vocabulary(vocabulary: VocabularyConfig) -> dict[str, Any]:
    """Return the settings of a vocabulary that are in its manifest.

    Its kind is left out if it is WordPiece: vocabularies that were made before there was another keep their keys.
    """
    return vocabulary.model_dump(exclude={"kind"} if vocabulary.kind == WORD_PIECE else set())


RECORDS = Stage(
    "records",
    "records",
    made_by="beam_jobs.build_records",
    revision=1,
    options={"vocabulary": "--vocab"},
    reads_text=True,
)
IMPORTED = replace(RECORDS, made_by="keras_bert_flow.checks.importing")


def records_key(
    corpus: CorpusConfig,
    records: RecordsConfig,
    vocabulary_file: Path,
    cased: bool,
    seed: int,
    storage: Storage = LOCAL,
) -> str:
    return records_key_of(corpus_digests(corpus, storage), corpus, records, vocabulary_file, cased, seed)


def records_key_of(
    text: Mapping[str, str], corpus: CorpusConfig, records: RecordsConfig, vocabulary_file: Path, cased: bool, seed: int
) -> str:
    """Return the content key of records; `text`: the digests of the corpus."""
    settings = {
        "corpus": corpus.model_dump(exclude=NOT_IN_KEYS),
        "records": records_settings(records),
        "cased": cased,
        "seed": seed,
    }
    settings |= describe_beside(vocabulary_file)
    return RECORDS.make_key(settings, {**text, **digest_tokenizer(vocabulary_file, "vocabulary")})


def records_settings(records: RecordsConfig) -> dict[str, Any]:
    """Return the settings of records that are in their key and their manifest.

    Packing is in neither if it is off: records that were made before there was such a setting keep their keys.
    """
    return records.model_dump(exclude=set() if records.packing else {"packing"})


def imported_key(
    config: Mapping[str, Any], parts: Mapping[str, Sequence[str]], vocabulary_file: str | Path
) -> tuple[str, dict[str, str]]:
    """Return the content key of imported records, and the digests of their files.

    Args:
        config: settings given for them.
        parts: `train` and `held_out` → their files.
    """
    inputs = digest_tokenizer(vocabulary_file, "vocabulary")
    for part, paths in parts.items():
        verify(*paths)
        inputs |= {f"{part}-{number}": file_digest(path) for number, path in enumerate(paths)}
    return IMPORTED.make_key(config, inputs), inputs

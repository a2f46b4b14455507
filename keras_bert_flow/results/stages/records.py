"""The stage that makes masked records from a corpus."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from keras_bert_flow.config.text import CorpusConfig, RecordsConfig
from keras_bert_flow.results.artifacts import file_digest
from keras_bert_flow.results.publishing import verify
from keras_bert_flow.results.stages.keys import NOT_IN_KEYS, Stage, corpus_digests, digest_tokenizer
from keras_bert_flow.text.corpus.inputs import LOCAL, Storage
from keras_bert_flow.text.tokenizers.files import describe_beside

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

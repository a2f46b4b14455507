"""Digest what stages are made from: text, tables and published folders.

Inputs from published folders are compared with their manifests as their digests are taken, so a key always names the
bytes that are there.
"""

import hashlib
from pathlib import Path
from typing import Any

from keras_bert_flow.arrivals import list_digests
from keras_bert_flow.artifacts import file_digest
from keras_bert_flow.config.corpus import CorpusConfig
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.records.manifest import MANIFEST, manifest_digest, read_manifest
from keras_bert_flow.records.results import INFORMATIONAL, SCORES
from keras_bert_flow.records.verification import verify
from keras_bert_flow.text.corpus.inputs import find_inputs, input_format, open_packed, whole_file
from keras_bert_flow.text.corpus.storage import LOCAL, Storage, is_remote
from keras_bert_flow.text.tokenizers.files import list_tokenizer_files

# Where the text lies, and a limit that decides only whether there is a result at all.
_NOT_IN_KEYS = {"input", "max_rejected_share"}


def corpus_digests(corpus: CorpusConfig, storage: Storage = LOCAL) -> dict[str, str]:
    """Digest each input file by content and format; where a file lies and how it is named changes nothing.

    Raises:
        ValueError: a file cannot be read, and such files are not to be skipped; those that are have no digest. Or a
            file is not as the manifest of its folder says.
    """
    paths = find_inputs(corpus.input, storage)
    verify(*(path for path in paths if not is_remote(path)))
    digests = sorted(_digest_input(path, corpus, storage) for path in paths)
    return {f"corpus-{number}": digest for number, digest in enumerate(digests)}


def task_digests(config: PipelineConfig) -> dict[str, str]:
    """Digest what the task is learnt from and chosen by: files, or folders of files as RACE has them."""
    return {name: digest_table(Path(getattr(config.task, name))) for name in ("train", "dev")}


def folder_digest(folder: Path) -> str:
    """Digest the files of a published folder by its manifest, or those of a model that others made by reading them.

    Raises:
        FileNotFoundError: the folder or a file of its manifest is missing.
        ValueError: a file is not as the manifest says.
    """
    verify(folder)
    if (Path(folder) / MANIFEST).is_file():
        return manifest_digest(read_manifest(folder))
    return ",".join(f"{name}:{digest}" for name, digest in folder_files(folder).items())


def folder_files(folder: Path) -> dict[str, str]:
    """Return the sha256 of each file of a folder except informational ones, from its manifest where it has one.

    Files in folders within count, such as `1_Pooling/config.json`, by which a model of sentence-transformers makes its
    vectors; those in hidden ones, such as `.git` and `.cache`, do not.
    """
    folder = Path(folder)
    verify(folder)
    if (folder / MANIFEST).is_file():
        return {file.name: file.key_digest for file in read_manifest(folder).files if not file.informational}
    if not folder.is_dir():
        raise FileNotFoundError(f"An input must be a folder. Received: {folder}, which is none. Check the path.")
    elsewhere = list_digests(folder)  # where the manifest alone is here
    places = {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()} | elsewhere.keys()
    seen = [place for place in sorted(places) if not any(part.startswith(".") for part in place.parts[:-1])]
    return {
        place.as_posix(): elsewhere.get(place) or file_digest(folder / place)
        for place in seen
        if place.name not in INFORMATIONAL | SCORES
    }


def digest_input_file(path: str | Path) -> str:
    """Digest a file by its content."""
    verify(path)
    return file_digest(path)


def digest_tokenizer(path: str | Path, name: str) -> dict[str, str]:
    """Digest the files of a tokenizer: this one, under a name, and the settings beside a `tokenizer.json`."""
    files = list_tokenizer_files(path)
    verify(*files)
    return {name if file == Path(path) else file.name: file_digest(file) for file in files}


def digest_table(path: Path) -> str:
    """Digest a table of a task: a file, or a folder of files as RACE has it."""
    verify(path)
    if not path.is_dir():
        return file_digest(path)
    return ",".join(f"{file.relative_to(path)}:{file_digest(file)}" for file in sorted(path.rglob("*.txt")))


def _digest_input(path: str, corpus: CorpusConfig, storage: Storage) -> str:
    try:
        with open_packed(path, storage) as file, whole_file(path):
            # typeshed asks for what `file_digest` does not call.
            digest = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    except ValueError:
        if corpus.skip_bad_inputs:
            return "unreadable"
        raise
    kind = input_format(path)
    return digest if kind == ".txt" else f"{kind}:{digest}"


def list_corpus_settings(corpus: CorpusConfig) -> dict[str, Any]:
    """Return the settings of the corpus that count."""
    return corpus.model_dump(exclude=_NOT_IN_KEYS)


def drop_paths(settings: dict[str, Any]) -> dict[str, Any]:
    """Drop where inputs lie; what they hold is digested apart."""
    paths = {
        "corpus": _NOT_IN_KEYS,
        "task": {"train", "dev", "extra_dev"},
        "vocabulary": {"file"},
        "evaluation": {"minimal_pairs"},
    }
    return {
        section: {name: value for name, value in values.items() if name not in paths[section]}
        if section in paths
        else values
        for section, values in settings.items()
    }

"""Content keys of the stages: what a stage of a run is, and the digests of its inputs.

Inputs from published folders are compared with their manifests when they are digested, so a key always names the bytes
on disk.
"""

import hashlib
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from keras_bert_flow.config.limits import BUILTIN
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.pretraining import AUTO
from keras_bert_flow.config.text import CorpusConfig
from keras_bert_flow.files.documents import read_file
from keras_bert_flow.files.inputs import InputStates, hold, hold_remote, list_digests
from keras_bert_flow.files.outputs import walk_input
from keras_bert_flow.results.artifacts import OpenedFiles, content_key, file_digest
from keras_bert_flow.results.manifest import INFORMATIONAL, MANIFEST, SCORES, manifest_digest, read_manifest
from keras_bert_flow.results.publishing import verify
from keras_bert_flow.text.corpus.inputs import (
    LOCAL,
    Storage,
    find_inputs,
    input_format,
    is_remote,
    open_packed,
    whole_file,
)
from keras_bert_flow.text.tokenizers.files import list_tokenizer_files

# Settings of a corpus: its location, and a limit that only decides whether there is a result at all.
NOT_IN_KEYS = {"input", "max_rejected_share"}
THREADS = 8  # of a corpus, files digested at a time
READ_BYTES = 1 << 20
_remote_digests: dict[tuple[str, str], str] = {}  # (path, version) → digest


@dataclass(frozen=True)
class Stage:
    """A stage of a run, which publishes a folder under its content key.

    A key covers the settings, the digests of the inputs and the revision. Anything not in the key (worker options,
    progress, the number of Beam workers) must not change a byte of the result.

    Attributes:
        name: name of the stage, and of the folder with its results.
        command: subcommand of `kbf`.
        made_by: module of the function that makes the result.
        revision: raised by every change with which the same settings and inputs give another result. The golden results
            of `tests/golden` fail until it is.
        options: input in the manifest → option of the command that takes it.
        reads_text: whether the command reads the corpus.
        reads_tables: whether it reads the tables of the task.
    """

    name: str
    command: str
    made_by: str
    revision: int
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    reads_text: bool = False
    reads_tables: bool = False

    def make_key(self, settings: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
        """Return the content key for settings and digests of inputs."""
        return content_key(self.name, settings, inputs, self.revision)


def refuse_auto(**precisions: str) -> None:
    """Raise ValueError for the precision `auto` in a key, since its meaning depends on the machine."""
    for section, precision in precisions.items():
        if precision == AUTO:
            raise ValueError(
                f"A key must name the precision. Received: {section}.precision=auto. Resolve the configuration first: "
                "precision_choice.resolve_precision(config)."
            )


def needs_builtin(config: PipelineConfig) -> bool:
    """Return whether the built-in corpus or task is written to files first."""
    return BUILTIN in config.corpus.input or config.task.train == BUILTIN


def name_stages(config: PipelineConfig) -> list[str]:
    """Return the stages in execution order; with a second phase of pre-training, two stages occur twice."""
    phases = len(config.phases)
    counts = {"corpus": int(needs_builtin(config)), "vocabulary": 1, "records": phases}
    counts |= {"pretraining": 0 if config.has_own_teacher else phases}
    counts |= {"distillation": int(config.distillation is not None)}
    counts |= {"augmentation": int(config.augmentation is not None), "finetuning": 1, "evaluation": 1}
    return [name for name, count in counts.items() for _ in range(count)]


def drop_paths(settings: dict[str, Any]) -> dict[str, Any]:
    """Drop the paths of inputs, whose content is digested separately."""
    paths = {
        "corpus": NOT_IN_KEYS,
        "task": {"train", "dev", "extra_dev"},
        "vocabulary": {"file"},
        "evaluation": {"minimal_pairs"},
        "augmentation": {"model", "stop_words"},
    }
    return {
        section: {name: value for name, value in values.items() if name not in paths[section]}
        if section in paths
        else values
        for section, values in settings.items()
    }


# Digest the inputs of stages: text, tables and published folders.


def corpus_digests(corpus: CorpusConfig, storage: Storage = LOCAL) -> dict[str, str]:
    """Digest each input file by content and format, regardless of its location and name.

    Skipped unreadable files have the digest `unreadable`.

    Raises:
        ValueError: a file cannot be read and `skip_bad_inputs` is off, or a file differs from the manifest of its
            folder.
    """
    paths = find_inputs(corpus.input, storage)
    verify(*(path for path in paths if not is_remote(path)))
    stopped = threading.Event()
    with ThreadPoolExecutor(THREADS) as pool:  # hashing and waiting for a store leave Python's lock to the others
        try:
            digests = sorted(pool.map(lambda path: _digest_input(path, corpus, storage, stopped), paths))
        except BaseException:  # also on a signal: files may be of any size
            stopped.set()
            pool.shutdown(cancel_futures=True)
            raise
    return {f"corpus-{number}": digest for number, digest in enumerate(digests)}


def hold_corpus(corpus: CorpusConfig, storage: Storage = LOCAL) -> tuple[CorpusConfig, InputStates]:
    """Return a corpus whose inputs are the files that are there now, and their states before they are read."""
    paths = find_inputs(corpus.input, storage)
    local = hold(*(path for path in paths if not is_remote(path)))
    held = local | hold_remote([path for path in paths if is_remote(path)], storage.find_state)
    return corpus.model_copy(update={"input": tuple(paths)}), held


def task_digests(config: PipelineConfig) -> dict[str, str]:
    """Digest the train and dev tables of the task: files, or folders of files as in RACE."""
    return {name: digest_table(Path(getattr(config.task, name))) for name in ("train", "dev")}


def folder_digest(folder: Path, files: OpenedFiles | None = None) -> str:
    """Digest a folder: a published one by its manifest, a model made by others by reading its files.

    Args:
        files: reads the files, each opened once; by default they are opened here.
    Raises:
        FileNotFoundError: the folder or a file of its manifest is missing.
        ValueError: a file differs from the manifest.
    """
    verify(folder, files=files)
    if (Path(folder) / MANIFEST).is_file():
        return manifest_digest(read_manifest(folder, files.read if files else read_file))
    return ",".join(f"{name}:{digest}" for name, digest in folder_files(folder, files).items())


def folder_files(folder: Path, files: OpenedFiles | None = None) -> dict[str, str]:
    """Return the sha256 of each file of a folder except informational ones, from its manifest if it has one.

    Files in subfolders count, such as `1_Pooling/config.json`, which defines the pooling of a sentence-transformers
    model; what is hidden, such as `.git` and `.cache`, and published results do not: see `files.outputs.walk_input`.
    """
    folder = Path(folder)
    verify(folder, files=files)
    if (folder / MANIFEST).is_file():
        manifest = read_manifest(folder, files.read if files else read_file)
        return {file.name: file.results or file.sha256 for file in manifest.files if not file.informational}
    if not folder.is_dir():
        raise FileNotFoundError(f"An input must be a folder. Received: {folder}, which is not one. Check the path.")
    elsewhere = list_digests(folder)  # if only the manifest has been fetched
    places = {path.relative_to(folder) for path in walk_input(folder) if path.is_file()} | elsewhere.keys()
    return {
        place.as_posix(): elsewhere.get(place) or file_digest(folder / place)
        for place in sorted(places)
        if place.name not in INFORMATIONAL | SCORES
    }


def digest_tokenizer(path: str | Path, name: str) -> dict[str, str]:
    """Digest the files of a tokenizer: the given one, under `name`, and those beside a `tokenizer.json`.

    What the files beside a `vocab.txt` say enters the key by itself: see `files.describe_rules`.
    """
    files = list_tokenizer_files(path)
    verify(*files)
    counted = files if Path(path).suffix == ".json" else files[:1]
    return {name if file == Path(path) else file.name: file_digest(file) for file in counted}


def digest_table(path: Path) -> str:
    """Digest a table of a task: a file, or a folder of files as in RACE."""
    verify(path)
    if not path.is_dir():
        return file_digest(path)
    return ",".join(
        f"{file.relative_to(path)}:{file_digest(file)}" for file in sorted(walk_input(path)) if file.suffix == ".txt"
    )


def _digest_input(path: str, corpus: CorpusConfig, storage: Storage, stopped: threading.Event) -> str:
    try:
        if is_remote(path):
            digest = _digest_remote(path, storage, stopped)
        else:
            with open_packed(path, storage), whole_file(path):
                digest = file_digest(path)
    except ValueError:
        if corpus.skip_bad_inputs:
            return "unreadable"
        raise
    kind = input_format(path)
    return digest if kind == ".txt" else f"{kind}:{digest}"


def _digest_remote(path: str, storage: Storage, stopped: threading.Event) -> str:
    """Digest a remote file, whose version is asked for first: a file that did not change is read once a process."""
    version = storage.find_version(path)
    if version is not None and (path, version) in _remote_digests:
        return _remote_digests[path, version]
    digest = hashlib.sha256()
    with open_packed(path, storage) as file, whole_file(path):
        while block := file.read(READ_BYTES):
            if stopped.is_set():
                raise InterruptedError
            digest.update(block)
    if version is not None:
        _remote_digests[path, version] = digest.hexdigest()
    return digest.hexdigest()

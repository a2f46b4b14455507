"""Say for each stage what its result depends on: one content key a stage, cheap to compute before anything runs.

A key names settings, digests of inputs and the code of every module that the stage's own imports
(`artifacts.content_key`, `import_closure.code_digests`). What is not in a key (worker options,
progress, the number of Beam workers) may not change a byte of the result. Inputs from published folders are compared
with their manifests as their digests are taken, so a key always names the bytes that are there.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from keras_bert_flow.artifacts import content_key, file_digest
from keras_bert_flow.config.corpus import CorpusConfig
from keras_bert_flow.config.optimization import AUTO
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.records import RecordsConfig
from keras_bert_flow.config.settings import BUILTIN
from keras_bert_flow.config.vocabulary import VocabularyConfig
from keras_bert_flow.import_closure import code_digests
from keras_bert_flow.records.manifest import MANIFEST, manifest_digest, read_manifest
from keras_bert_flow.records.results import INFORMATIONAL, SCORES
from keras_bert_flow.records.verification import verify
from keras_bert_flow.text.builtin import builtin_digest
from keras_bert_flow.text.inputs import find_inputs, input_format, open_packed, whole_file
from keras_bert_flow.text.storage import LOCAL, Storage, is_remote

# stage → module of the function that makes its result
STAGES = {
    "corpus": "keras_bert_flow.builtin",
    "vocabulary": "beam_jobs.build_vocabulary",
    "records": "beam_jobs.build_records",
    "pretraining": "keras_bert_flow.training.pretraining.pretrain",
    "finetuning": "keras_bert_flow.training.finetuning.finetune",
    "evaluation": "keras_bert_flow.evaluation.evaluate",
}
# Where the text lies, and a limit that decides only whether there is a result at all.
_NOT_IN_KEYS = {"input", "max_rejected_share"}
# Settings of pre-training that change what is seen and kept of a run, but no weight and no score that comes out.
WATCHING = (
    "log_every_steps",
    "tensorboard",
    "checkpoint_every_steps",
    "keep_checkpoints",
    "keep_best",
    "peak_flops",
)


def corpus_key() -> str:
    """Key of the built-in corpus and task, written out."""
    return _stage_key("corpus", {}, {"packages": builtin_digest()})


def vocabulary_key(corpus: CorpusConfig, vocabulary: VocabularyConfig, storage: Storage = LOCAL) -> str:
    settings = {"corpus": _corpus_settings(corpus), "vocabulary": vocabulary.model_dump(exclude={"file"})}
    inputs = corpus_digests(corpus, storage) if vocabulary.file is None else {"file": _digest_file(vocabulary.file)}
    return _stage_key("vocabulary", settings, inputs)


def records_key(
    corpus: CorpusConfig,
    records: RecordsConfig,
    vocabulary_file: Path,
    cased: bool,
    seed: int,
    storage: Storage = LOCAL,
) -> str:
    settings = {
        "corpus": _corpus_settings(corpus),
        "records": records.model_dump(),
        "cased": cased,
        "seed": seed,
    }
    inputs = corpus_digests(corpus, storage) | {"vocabulary": _digest_file(vocabulary_file)}
    return _stage_key("records", settings, inputs)


def pretraining_key(
    config: PipelineConfig, records: Path, initial_model: Path | None = None, earlier: Sequence = ()
) -> str:
    """Key of a pre-trained model; `earlier` are other settings that its first steps were made with."""
    _refuse_auto(pretraining=config.pretraining.precision)
    is_chosen = config.pretraining.publish == "best"  # when it was evaluated then changes which model comes out
    unseen = {*WATCHING} if is_chosen else {*WATCHING, "evaluate_every_steps"}
    settings = config.model_dump(include={"model", "seed", "backend"})
    settings["pretraining"] = config.pretraining.model_dump(exclude=unseen)
    if earlier:
        settings["earlier"] = list(earlier)
    return _stage_key("pretraining", settings, pretraining_inputs(records, initial_model))


def pretraining_inputs(records: Path, initial_model: Path | None) -> dict[str, str]:
    """Digest what a pre-training is made from."""
    initial = {} if initial_model is None else {"initial_model": folder_digest(initial_model)}
    return {"records": folder_digest(records)} | initial


def finetuning_key(config: PipelineConfig, model: Path) -> str:
    _refuse_auto(finetuning=config.finetuning.precision)
    settings = _without_paths(config.model_dump(include={"task", "finetuning", "backend"}))
    inputs = {"model": folder_digest(model)} | task_digests(config)
    return _stage_key("finetuning", settings, inputs)


def evaluation_key(config: PipelineConfig, finetuned: Path, records: Path, phases: Sequence[Path] = ()) -> str:
    """Key of a report; `phases` are the folders of pre-training whose scores it shows."""
    _refuse_auto(pretraining=config.pretraining.precision, finetuning=config.finetuning.precision)
    settings = _without_paths(config.model_dump(exclude={"runs", "beam", "distribution"}))
    pairs = config.evaluation.minimal_pairs
    if pairs is None:
        del settings["evaluation"]
    extra = {f"extra_dev {name}": _digest_table(Path(path)) for name, path in config.task.extra_dev.items()}
    extra |= {"minimal_pairs": _digest_file(pairs)} if pairs else {}
    inputs = evaluation_inputs(finetuned, records, phases) | task_digests(config) | extra
    return _stage_key("evaluation", settings, inputs)


def evaluation_inputs(finetuned: Path, records: Path, phases: Sequence[Path]) -> dict[str, str]:
    """Digest the folders that a report is made from."""
    pretrained = {f"pretrained-{number}": folder_digest(folder) for number, folder in enumerate(phases, 1)}
    return {"finetuned": folder_digest(finetuned), "records": folder_digest(records)} | pretrained


def stage_code(stage: str) -> dict[str, str]:
    """Digest each module that a stage is made with."""
    return code_digests(STAGES[stage])


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
    return {name: _digest_table(Path(getattr(config.task, name))) for name in ("train", "dev")}


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
    places = [path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file()]
    seen = [place for place in places if not any(part.startswith(".") for part in place.parts[:-1])]
    return {place.as_posix(): file_digest(folder / place) for place in seen if place.name not in INFORMATIONAL | SCORES}


def resolve_builtin(config: PipelineConfig, corpus_folder: Path) -> PipelineConfig:
    """Put the files of the written-out built-in corpus and task in the places of the word `builtin`."""
    corpus, task = config.corpus, config.task
    if BUILTIN in corpus.input:
        files = tuple(str(corpus_folder / "corpus.txt") if item == BUILTIN else item for item in corpus.input)
        corpus = corpus.model_copy(update={"input": files})
    if task.train == BUILTIN:
        files = {"train": str(corpus_folder / "train.tsv"), "dev": str(corpus_folder / "dev.tsv")}
        task = task.model_copy(update=files | {"header": True, "text": "text", "text_pair": None, "label": "label"})
    return config.model_copy(update={"corpus": corpus, "task": task})


def needs_builtin(config: PipelineConfig) -> bool:
    return BUILTIN in config.corpus.input or config.task.train == BUILTIN


def _stage_key(stage: str, settings: dict, inputs: dict[str, str]) -> str:
    return content_key(stage, settings, inputs, stage_code(stage))


def _refuse_auto(**precisions: str) -> None:
    """Let no key say `auto`, which means another arithmetic on another machine."""
    for section, precision in precisions.items():
        if precision == AUTO:
            raise ValueError(
                f"A key must name the precision. Received: {section}.precision=auto. Resolve the configuration first: "
                "precision_choice.resolve_precision(config)."
            )


def _digest_file(path: str | Path) -> str:
    verify(path)
    return file_digest(path)


def _digest_table(path: Path) -> str:
    verify(path)
    if not path.is_dir():
        return file_digest(path)
    return ",".join(f"{file.relative_to(path)}:{file_digest(file)}" for file in sorted(path.rglob("*.txt")))


def _digest_input(path: str, corpus: CorpusConfig, storage: Storage) -> str:
    try:
        with open_packed(path, storage) as file, whole_file(path):
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except ValueError:
        if corpus.skip_bad_inputs:
            return "unreadable"
        raise
    kind = input_format(path)
    return digest if kind == ".txt" else f"{kind}:{digest}"


def _corpus_settings(corpus: CorpusConfig) -> dict:
    return corpus.model_dump(exclude=_NOT_IN_KEYS)


def _without_paths(settings: dict) -> dict:
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

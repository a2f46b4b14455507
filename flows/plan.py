"""Describe what a run would do, without doing it: stages with their keys, sizes of inputs, and estimates.

Keys of stages whose inputs are not made yet are not known. Nothing is written, and no server or backend is started.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flows.estimates import estimate_finetuning, estimate_pretraining, estimate_tokens
from flows.stages import MODEL, Stage
from keras_bert_flow import keys
from keras_bert_flow.config import PipelineConfig
from keras_bert_flow.preflight.run import STAGES
from keras_bert_flow.preflight.stages import check_corpus, check_task
from keras_bert_flow.settings import BUILTIN
from keras_bert_flow.text.storage import is_remote
from keras_bert_flow.text.vocabulary import VOCABULARY_FILE

UNKNOWN = "not yet known"


@dataclass(frozen=True)
class PlannedStage:
    """A stage of a plan; `stage` is None where its key needs a result that is not made yet."""

    name: str
    stage: Stage | None
    needs: str = ""

    @property
    def folder(self) -> Path | None:
        """The published folder, None where it is not there."""
        return self.stage.folder if self.stage and self.stage.is_finished() else None

    def __str__(self) -> str:
        state = "cached" if self.folder else "to run" if self.stage else f"to run, key needs {self.needs}"
        return f"{self.name:12}  {self.stage.key if self.stage else UNKNOWN:16}  {state}"


def describe_plan(config: PipelineConfig) -> str:
    """Return the stages, inputs and estimates of a run as lines of text.

    Args:
        config: with absolute paths; `check_run` has accepted it.
    """
    stages = list(plan_stages(config))
    files, task = check_corpus(config), check_task(config)
    lines = [f"Plan of {config.name}: backend {config.backend}, results in {config.runs}. Nothing is run.", ""]
    lines += [*map(str, stages), ""]
    vocabulary = next((stage.folder for stage in stages if stage.name == "vocabulary"), None)
    file = vocabulary / VOCABULARY_FILE if vocabulary else config.vocabulary.file and Path(config.vocabulary.file)
    tokens = None
    lines.append(_describe_corpus(config, files))
    if files:
        tokens, line = estimate_tokens(config, files, file or None)
        lines.append(line)
    lines += estimate_pretraining(config, tokens)
    lines += estimate_finetuning(config, len(task.training) if task else 0)
    return "\n".join(lines)


def plan_stages(config: PipelineConfig) -> Iterator[PlannedStage]:
    """Yield every stage in the order in which they run, with its key where the results that it needs are there."""
    if keys.needs_builtin(config):
        corpus = PlannedStage("corpus", _stage(config, "corpus", keys.corpus_key()))
        yield corpus
        if corpus.folder is None:
            yield from (PlannedStage(name, None, "corpus") for name in _names(config))
            return
        config = keys.resolve_builtin(config, corpus.folder)
    if any(map(is_remote, config.corpus.input)):  # its digest needs Beam, and all of the text
        yield from (PlannedStage(name, None, "the text at another place") for name in _names(config))
        return
    vocabulary = PlannedStage(
        "vocabulary", _stage(config, "vocabulary", keys.vocabulary_key(config.corpus, config.vocabulary))
    )
    yield vocabulary
    records = []
    for phase in config.phases:
        records.append(_plan_records(phase, vocabulary.folder))
        yield records[-1]
    previous: Path | None = None
    for number, (phase, made) in enumerate(zip(config.phases, records, strict=True)):
        known = made.folder and (previous or not number)
        key = keys.pretraining_key(phase, made.folder, previous and previous / MODEL) if known else None
        planned = PlannedStage("pretraining", key and _stage(config, "pretraining", key), "records")
        previous = planned.folder
        yield planned
    key = keys.finetuning_key(config, previous / MODEL) if previous else None
    finetuning = PlannedStage("finetuning", key and _stage(config, "finetuning", key), "pretraining")
    yield finetuning
    key = keys.evaluation_key(config, finetuning.folder, records[-1].folder) if finetuning.folder else None
    yield PlannedStage("evaluation", key and _stage(config, "evaluation", key), "finetuning")


def _plan_records(config: PipelineConfig, vocabulary: Path | None) -> PlannedStage:
    if vocabulary is None:
        return PlannedStage("records", None, "vocabulary")
    file = vocabulary / VOCABULARY_FILE
    key = keys.records_key(config.corpus, config.records, file, config.vocabulary.cased, config.seed)
    return PlannedStage("records", _stage(config, "records", key))


def _names(config: PipelineConfig) -> list[str]:
    phases = len(config.phases)
    return [name for name in STAGES for _ in range(phases if name in ("records", "pretraining") else 1)]


def _stage(config: PipelineConfig, name: str, key: str) -> Stage:
    return Stage(name, key, Path(config.runs) / name / key, ())


def _describe_corpus(config: PipelineConfig, files: list[str]) -> str:
    if files:
        size = sum(Path(path).stat().st_size for path in files)
        return f"Corpus: {len(files):,} files, {size / 1e6:,.1f} MB on disk."
    if BUILTIN in config.corpus.input:
        return "Corpus: the built-in one; its records are not estimated."
    return "Corpus: at another place, not measured."

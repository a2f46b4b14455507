"""Describe what a run would do, without running it: stages with their keys, sizes of inputs, and estimates.

The keys of stages whose inputs do not exist yet are unknown. Nothing is written, and no server or backend is started.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from flows.parameters import local_runs
from flows.stages import NOWHERE, StageRun, Unfinished, corpus_stage, make_all, make_builtin
from keras_bert_flow.checks.estimates import (
    describe_workers,
    estimate_corpus,
    estimate_finetuning,
    estimate_pretraining,
)
from keras_bert_flow.checks.stages import check_corpus
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.console.terminal import JOINERS, escape_controls
from keras_bert_flow.files.paths import find_address
from keras_bert_flow.results.adoption import find_earlier
from keras_bert_flow.results.publishing import hold_key, holding_inputs, holding_results
from keras_bert_flow.results.stages.data import CORPUS, resolve_builtin
from keras_bert_flow.results.stages.keys import name_stages, needs_builtin
from keras_bert_flow.stores.fetching import fetch, fetch_manifest
from keras_bert_flow.tasks.minimal_pairs import read_minimal_pairs
from keras_bert_flow.text.corpus.builtin import write_builtin_corpus, write_builtin_task
from keras_bert_flow.text.corpus.inputs import is_remote
from keras_bert_flow.text.tokenizers.files import find_tokenizer_file
from keras_bert_flow.training.finetuning.task_data import TaskFiles, read_task_files

UNKNOWN = "not yet known"
DIGESTED_BYTES = 500_000_000  # takes a second or two; a larger text is digested only once, when the run needs it


@dataclass(frozen=True)
class PlannedStage:
    """A stage of a plan; `stage` is None if its key depends on a result that does not exist yet.

    Attributes:
        earlier: the folder of the result by an earlier version of this package, which a run makes again.
    """

    name: str
    stage: StageRun | None
    needs: str = ""
    earlier: Path | None = None

    @property
    def folder(self) -> Path | None:
        """The published folder, or only its manifest if it is remote; None if it does not exist."""
        return fetch_manifest(self.stage.folder) if self.stage and self.stage.is_finished() else None

    def __str__(self) -> str:
        state = "cached" if self.folder else "to run" if self.stage else f"to run, key needs {self.needs}"
        if self.earlier:
            state += f"; made by an earlier version, {self.earlier.name}"
        return f"{self.name:12}  {self.stage.key if self.stage else UNKNOWN:16}  {state}"


def describe_plan(config: PipelineConfig, task: TaskFiles | None = None) -> str:
    """Return the stages, inputs and estimates of a run as lines of text.

    If the built-in corpus is needed and not written yet, it is first written to a temporary folder, which takes 10 s.

    Args:
        config: configuration with absolute paths, accepted by `check_run`.
        task: the result of `check_run`, so that the tables are not read again.
    """
    with _builtin_folder(config) as builtin:
        stages = list(plan_stages(config, builtin))
        lines = [f"Plan of {config.name}: backend {config.backend}, results in {config.runs}. Nothing is run.", ""]
        lines += [*map(str, stages), *_describe_earlier(config, stages), ""]
        resolved = resolve_builtin(config, builtin) if builtin else config
        lines += _estimate(resolved, stages, task or read_task_files(resolved))
        return "\n".join(escape_controls(line, JOINERS) for line in lines)


def _estimate(config: PipelineConfig, stages: Sequence[PlannedStage], task: TaskFiles) -> list[str]:
    files = check_corpus(config)
    vocabulary = next(stage for stage in stages if stage.name == "vocabulary")
    file = Path(config.vocabulary.file) if config.vocabulary.file else None
    if vocabulary.stage and vocabulary.folder:
        file = find_tokenizer_file(fetch(vocabulary.stage.folder))
    remote = [pattern for pattern in config.corpus.input if is_remote(pattern)]
    estimate = estimate_corpus(config, files, file) if files and not remote else None
    corpus = []
    if files:
        size = sum(Path(path).stat().st_size for path in files)
        corpus.append(f"{len(files):,} file{'s' * (len(files) != 1)}, {size / 1e6:,.1f} MB on disk")
    if remote:
        corpus.append(f"text at another place, not measured: {', '.join(remote)}")
    minimal_pairs = []
    if (path := config.evaluation.minimal_pairs) is not None:
        pairs = read_minimal_pairs(path, config.evaluation.minimal_pairs_limit)
        phenomena = {pair.groups["phenomena"] for pair in pairs}
        minimal_pairs = [
            f"Minimal pairs: {len(pairs):,} of {len(phenomena):,} phenomena, scored by the pre-trained model."
        ]
    return [
        f"Corpus: {'; '.join(corpus)}.",
        *estimate_pretraining(config, estimate),
        *estimate_finetuning(config, len(task.training)),
        f"Precision: {config.pretraining.precision}, in fine-tuning {config.finetuning.precision}.",
        *describe_workers(config, files),
        *minimal_pairs,
        *task.remarks,
    ]


def is_soon_digested(config: PipelineConfig) -> bool:
    """Return whether the text is local and small enough to digest an additional time, to find finished stages."""
    files = check_corpus(config)
    remote = any(map(is_remote, config.corpus.input))
    return not remote and sum(Path(path).stat().st_size for path in files) <= DIGESTED_BYTES


@contextmanager
def holding_plan(*configs: PipelineConfig) -> Iterator[None]:
    """Hold what runs read, find and make, so that `kbf runs gc` keeps it; see `leases`.

    Until the first command has to run, that is everything in the folder of results; of several runs, which are other
    processes, until the keys of all are known.

    Args:
        configs: results of `resolve_config`.
    """
    with holding_inputs(), holding_results(local_runs(configs[0])) as lease:
        are_known = all(_hold_keys(config) for config in configs)
        if lease and are_known and len(configs) > 1:
            lease.close()
        yield


def _hold_keys(config: PipelineConfig) -> bool:
    """Hold the results that a run would find; return whether they are soon known."""
    with suppress(OSError, ValueError):  # what is damaged is said, and made again, when its stage comes
        if is_soon_digested(config):
            for planned in plan_stages(config):
                if planned.stage:
                    hold_key(planned.stage.key)
            return True
    return False


def describe_finished(config: PipelineConfig) -> str:
    """Return a line on the finished stages and those to run.

    Args:
        config: configuration with absolute paths, accepted by `check_run`.
    """
    if not is_soon_digested(config):
        return "Which stages are finished is told as each comes: the text is not digested twice."
    stages = list(plan_stages(config))
    finished = [f"{planned.name} {planned.stage.key}" for planned in stages if planned.stage and planned.folder]
    to_run = [planned.name for planned in stages if not planned.folder]
    lines = [f"Finished already: {', '.join(finished) or 'nothing'}. To run: {', '.join(to_run) or 'nothing'}."]
    return "\n".join(lines + _describe_earlier(config, stages))


def _describe_earlier(config: PipelineConfig, stages: Sequence[PlannedStage]) -> list[str]:
    """Name the stages that a run makes again although an earlier version has made them."""
    names = [planned.name for planned in stages if planned.earlier]
    if not names:
        return []
    return [
        f"An earlier version has made {', '.join(names)} of the same settings and inputs; `kbf runs adopt "
        f"{config.runs} --config FILE`, with this configuration, has them used."
    ]


@contextmanager
def _builtin_folder(config: PipelineConfig) -> Iterator[Path | None]:
    """Yield a folder with the built-in corpus and task, or None if the configuration does not use them."""
    if not needs_builtin(config):
        yield None
        return
    published = PlannedStage("corpus", corpus_stage(config)).folder
    if published:
        yield published
        return
    with TemporaryDirectory(prefix="kbf-") as folder:
        write_builtin_corpus(folder)
        write_builtin_task(folder)
        yield Path(folder)


def plan_stages(config: PipelineConfig, builtin: Path | None = None) -> Iterator[PlannedStage]:
    """Yield every stage in execution order, with its key if the results that it depends on exist.

    Args:
        builtin: folder of the built-in corpus and task.
    """
    planned: list[PlannedStage] = []

    def find(stage: StageRun) -> Path:
        is_here = not find_address(stage.folder)
        earlier = find_earlier(stage.folder, config) if is_here and not stage.is_finished() else None
        planned.append(PlannedStage(stage.name, stage, earlier=earlier))
        if stage.is_finished():
            return stage.folder
        return earlier or (builtin if stage.name == CORPUS.name and builtin else NOWHERE / stage.name)

    try:
        if any(map(is_remote, config.corpus.input)):  # its digest would need Beam and reading all of the text
            make_builtin(config, find)
            raise Unfinished("the text at another place")
        make_all(config, find)
        needs = ""
    except Unfinished as unfinished:
        needs = str(unfinished)
    yield from planned
    for name in name_stages(config)[len(planned) :]:
        yield PlannedStage(name, None, needs)
        needs = name

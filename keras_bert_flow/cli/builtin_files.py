"""Write the built-in corpus and task for a command whose configuration says `builtin`."""

from pathlib import Path

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.settings import BUILTIN
from keras_bert_flow.local_paths import check_local, find_address
from keras_bert_flow.stores.cache import cache_root


def fill_builtin_corpus(settings: PipelineConfig, output: str) -> PipelineConfig:
    """Name the files of the built-in corpus, written beside the output, where it is asked for.

    Raises:
        ValueError: the output is in an object store.
    """
    if BUILTIN not in settings.corpus.input:
        return settings
    check_local(output, "The output of a job with the built-in corpus")
    return _fill(settings, Path(output).absolute().parent)


def fill_builtin_task(settings: PipelineConfig) -> PipelineConfig:
    """Name the tables of the built-in task, written where `kbf run` has them, where it is asked for."""
    if settings.task.train != BUILTIN:
        return settings
    folder = cache_root() / "runs" if find_address(settings.runs) else Path(settings.runs).absolute()
    return _fill(settings, folder)


def _fill(settings: PipelineConfig, folder: Path) -> PipelineConfig:
    from keras_bert_flow.builtin import publish_builtin
    from keras_bert_flow.stages.corpus import corpus_key, resolve_builtin

    return resolve_builtin(settings, publish_builtin(folder / "corpus" / corpus_key()))

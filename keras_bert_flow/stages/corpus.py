"""The stage that writes the built-in corpus and task to files."""

from pathlib import Path

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.settings import BUILTIN
from keras_bert_flow.stages.stage import Stage
from keras_bert_flow.text.corpus.builtin import builtin_digest

CORPUS = Stage("corpus", "corpus", made_by="keras_bert_flow.builtin", revision=1)


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

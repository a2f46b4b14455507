"""The stage that writes the built-in corpus and task to files, and the function that publishes them."""

from pathlib import Path

from keras_bert_flow.config.limits import BUILTIN
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.files.paths import check_local
from keras_bert_flow.results.publishing import Contents, published
from keras_bert_flow.results.stages.keys import Stage
from keras_bert_flow.text.corpus.builtin import builtin_digest, write_builtin_corpus, write_builtin_task

CORPUS = Stage("corpus", "corpus", made_by="keras_bert_flow.results.stages.corpus", revision=1)


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

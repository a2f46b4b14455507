"""Publish the built-in corpus and task as files, so that they are handled like any other text."""

from pathlib import Path

from keras_bert_flow.records.publish import Contents, publish
from keras_bert_flow.stages.corpus import CORPUS, corpus_key
from keras_bert_flow.text.corpus.builtin import builtin_digest, write_builtin_corpus, write_builtin_task


def publish_builtin(output: str | Path) -> Path:
    """Publish a folder with `corpus.txt`, `train.tsv` and `dev.tsv`, unless it already exists.

    Raises:
        FileNotFoundError: a package whose docstrings it needs is not installed; the message names the install line.
    """

    def build(work: Path) -> Contents:
        write_builtin_corpus(work)
        write_builtin_task(work)
        return Contents(inputs={"packages": builtin_digest()})

    return publish(output, CORPUS.name, corpus_key(), build, revision=CORPUS.revision)

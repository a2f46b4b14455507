"""Publish the built-in corpus and task as files, so that they travel like any other text."""

from pathlib import Path

from keras_bert_flow.artifacts import publishing
from keras_bert_flow.keys import corpus_key
from keras_bert_flow.records.manifest import is_published, write_manifest
from keras_bert_flow.text.builtin import builtin_digest, write_builtin_corpus, write_builtin_task


def publish_builtin(output: str | Path) -> Path:
    """Publish a folder with `corpus.txt`, `train.tsv` and `dev.tsv`; at once where it is already there.

    Raises:
        FileNotFoundError: a package whose docstrings it needs is not installed; the message names the install line.
    """
    output, key = Path(output), corpus_key()
    if is_published(output, key):
        return output
    with publishing(output) as work:
        write_builtin_corpus(work)
        write_builtin_task(work)
        write_manifest(work, "corpus", key, {}, {"packages": builtin_digest()}, {})
    return output

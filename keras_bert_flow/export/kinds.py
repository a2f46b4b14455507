"""Determine what a model directory is exported as (a task, features, masked LM, embeddings), without Keras."""

from pathlib import Path

from keras_bert_flow.conversion.sentence_files import MODULES
from keras_bert_flow.prediction.load import ASKED_AS, FINE_TUNED, find_task, has_task

FEATURES, MASKED_LM, EMBEDDING = "features", "fill_mask", "sentence_embedding"


def find_kind(folder: Path, asked_as: str | None = None) -> str:
    """Return what to export: the kind of a task, or `features`, `fill_mask` or `sentence_embedding`.

    Args:
        asked_as: one of `ASKED_AS`; by default determined by the directory: its task, sentence embeddings, or, if it
            has neither, token features.
    Raises:
        ValueError: `asked_as` is unknown, or asks for a task that the directory lacks.
    """
    if asked_as is not None:
        ASKED_AS.check(asked_as)
    if asked_as is None:
        is_embedder = not has_task(folder) and (folder / MODULES).is_file()
        asked_as = FINE_TUNED if has_task(folder) else EMBEDDING if is_embedder else FEATURES
    if asked_as != FINE_TUNED:
        return asked_as
    if not has_task(folder):
        raise ValueError(
            f"A model must have the head of a task to be exported as such. Received: {folder}, without. "
            "Try --as features."
        )
    return find_task(folder)[0].kind

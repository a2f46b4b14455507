"""Check the request for an export before Keras is imported: what is exported, and which backend writes it."""

import importlib.util
import os
from pathlib import Path

from keras_bert_flow.conversion.sentence_files import MODULES
from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.export.format import find_export_format
from keras_bert_flow.files.outputs import check_apart, check_place, existing_output
from keras_bert_flow.installed import check_backend, check_installed, check_release
from keras_bert_flow.prediction.load import ASKED_AS, EMBEDDING, FEATURES, FINE_TUNED, find_task, has_task
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer
from keras_bert_flow.text.tokenizers.wordpiece import PLAIN, WordPieceTokenizer

STRINGS = "tensorflow_text"
CHOICE = "multiple_choice"
MAX_CHANGED = 0.05  # share of the predictions that int8 may change


def choose_backend(format: str, backend: str | None = None) -> str:
    """Return the Keras backend that writes a format; model directories are backend-independent.

    Args:
        backend: the requested one; by default KERAS_BACKEND if it can write the format, else the first installed one
            that can.
    Raises:
        ValueError: `backend` is unknown, not installed, or cannot write the format.
    """
    known = find_export_format(format)
    if backend is not None:
        check_backend(backend)
        if backend not in known.packages:
            raise ValueError(
                f"{known.title} must be written by {' or '.join(known.packages)}. Received: {backend}: "
                f"{known.refusals[backend]}. Use one of them: a model directory is of no backend."
            )
        return backend
    preferred = os.environ.get("KERAS_BACKEND")
    order = sorted(known.packages, key=lambda name: name != preferred)
    installed = [name for name in order if importlib.util.find_spec(name)]
    return installed[0] if installed else order[0]


def check_max_changed(share: float | None, int8: bool) -> None:
    """Check the share of predictions that int8 may change.

    Raises:
        ValueError: it is not a share, or given without int8.
    """
    if share is None:
        return
    if not 0 <= share <= 1:
        raise ValueError(f"--max-changed must be from 0 to 1, a share. Received: {share:g}. Try {MAX_CHANGED}.")
    if not int8:
        raise ValueError("--max-changed must be of int8: float32 changes nothing. Received: no --int8. Leave it out.")


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


def check_export(
    folder: Path,
    output: Path,
    format: str,
    backend: str,
    int8: bool = False,
    asked_as: str | None = None,
    strings: bool = False,
) -> Tokenizer:
    """Check that an export can be made, and return the tokenizer.

    Args:
        backend: the result of `choose_backend`.
        int8, asked_as, strings: as for `export_model`.
    Raises:
        FileExistsError: the output exists.
        FileNotFoundError: the model, or a file of it, is missing.
        ValueError: a package is not installed, a file is damaged, the output is in the model, or the model cannot be
            exported as requested.
    """
    known = find_export_format(format)
    check_installed((backend, *known.packages[backend], known.runtime, *([STRINGS] if strings else [])))
    if backend in known.oldest:
        check_release(backend, known.oldest[backend])
    if int8 and not known.has_int8:
        raise ValueError(f"{known.title} must be written in float32. Received: --int8. Leave it out, or use onnx.")
    if strings and not known.has_strings:
        raise ValueError(f"{known.title} must be given ids. Received: --strings. Leave it out, or use saved_model.")
    check_apart(output, [folder])
    check_place(output)
    if output.exists():
        raise existing_output(output)
    kind, tokenizer = find_kind(folder, asked_as), read_tokenizer(folder)
    if strings and not isinstance(tokenizer, WordPieceTokenizer):
        raise ValueError(f"--strings must be of a WordPiece vocabulary. Received: {folder}, of another. Leave it out.")
    rules = tokenizer.rules if isinstance(tokenizer, WordPieceTokenizer) else PLAIN
    if strings and (rules.added or not rules.split_han):
        raise ValueError(
            "--strings must be of a tokenizer that tensorflow-text has: no added tokens, and Han characters as words. "
            f"Received: {folder}, of another. Leave it out."
        )
    if strings and kind == CHOICE:
        raise ValueError("--strings must be of texts or pairs. Received: a model of multiple choice. Leave it out.")
    return tokenizer

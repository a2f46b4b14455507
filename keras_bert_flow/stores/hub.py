"""Download models from the Hugging Face Hub: hf://org/name, or hf://org/name@revision.

This uses `huggingface_hub`, with its own cache (HF_HOME), offline mode (HF_HUB_OFFLINE) and credentials (HF_TOKEN).
"""

import os
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from keras_bert_flow.deadlines import NoAnswerError, answer_within
from keras_bert_flow.extras import check_installed
from keras_bert_flow.terminal import abridge, hide_credentials

SCHEME = "hf://"
# If a repository has weights in several formats, only one is fetched.
FILES = (
    "config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "adapter_config.json",
    "adapter_model.safetensors",
    "vocab.txt",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "modules.json",
    "sentence_*_config.json",
    "config_sentence_transformers.json",
    "?_*/config.json",
    "task.json",
    "README.md",
)


def is_of_hub(address: str) -> bool:
    """Return whether an address is on the Hub."""
    return address.lower().startswith(SCHEME)


def split_address(address: str) -> tuple[str, str | None]:
    """Return the name of a model on the Hub, and its revision, if given.

    Args:
        address: `org/name` or `org/name@revision`, optionally prefixed by `hf://`.
    Raises:
        ValueError: it is not the address of a model.
    """
    name, _, revision = address[len(SCHEME) * is_of_hub(address) :].rstrip("/").partition("@")
    if not name or name.count("/") > 1:
        raise ValueError(f"A model of the Hub must be hf://org/name or hf://org/name@revision. Received: {address}.")
    return name, revision or None


def fetch_from_hub(address: str) -> Path:
    """Return the folder in the Hub's cache with a model, downloaded if it is not there yet.

    Raises:
        FileNotFoundError: there is no such model or revision, or it is not cached and the Hub does not answer.
        ValueError: it is not the address of a model, it has no safetensors, or `huggingface_hub` is not installed.
        OSError: the Hub cannot be reached, or refuses.
    """
    check_installed(["huggingface_hub"])
    name, revision = split_address(address)
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from huggingface_hub import snapshot_download

    is_cached_only = not _is_answering(name, revision)
    with _explaining(address):
        folder = Path(
            snapshot_download(name, revision=revision, allow_patterns=list(FILES), local_files_only=is_cached_only)
        )
    if not [*folder.glob("*.safetensors")]:
        raise ValueError(
            f"A model must have safetensors. Received: {address}, without them: no pickle is read. Ask for a revision "
            "that has them, such as @refs/pr/1, or convert it with transformers where it can be trusted."
        )
    return folder


def _is_answering(name: str, revision: str | None) -> bool:
    """Return whether the Hub answers in time at all; `huggingface_hub` would wait for the first answer for ever."""
    from huggingface_hub import HfApi, constants

    if constants.HF_HUB_OFFLINE:
        return False
    with suppress(Exception):  # an answer that is an error is reported by the download
        try:
            ask_hub(lambda: HfApi().repo_info(name, revision=revision), name)
        except NoAnswerError:
            return False
    return True


def ask_hub(ask: Callable[[], Any], name: str, seconds: float | None = None) -> Any:
    """Return an answer of the Hub about a model.

    Raises:
        NoAnswerError: there is none in time.
    """
    from huggingface_hub import constants

    endpoint = hide_credentials(constants.ENDPOINT)
    remedy = "Check the network, the proxies in the environment, and HF_ENDPOINT"
    return answer_within(ask, "The Hub", f"{name} at {endpoint}", remedy, seconds)


@contextmanager
def _explaining(address: str):
    """Turn errors of the Hub into one-line errors."""
    from huggingface_hub import errors

    reasons = (
        (errors.GatedRepoError, PermissionError, "which must be asked for. Accept its terms, and set HF_TOKEN"),
        (errors.RepositoryNotFoundError, FileNotFoundError, "which is not there, or private. Check it, and HF_TOKEN"),
        (errors.RevisionNotFoundError, FileNotFoundError, "which has no such revision. Check it"),
        (errors.HFValidationError, ValueError, "which is no name of a model. Check it"),
        (
            (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled),
            FileNotFoundError,
            "which is not in the cache, and the Hub did not answer. Check the network, HF_HUB_OFFLINE and HF_ENDPOINT",
        ),
    )
    try:
        yield
    except Exception as error:
        for kinds, raised, reason in reasons:
            if isinstance(error, kinds):
                raise raised(f"A model of the Hub must exist. Received: {address}, {reason}.") from None
        if isinstance(error, errors.HfHubHTTPError | OSError):
            raise explain_refusal("A model of the Hub must be fetched", address, error) from None
        raise


def explain_refusal(rule: str, address: str, error: Exception) -> OSError:
    """Return an error of the Hub, or of the connection to it, as one line."""
    text = hide_credentials(str(error)).strip()
    first = abridge(text.splitlines()[0].rstrip(".") if text else type(error).__name__)
    return OSError(f"{rule}. Received: {address}: {first}. Try again.")

"""Bring models of the Hugging Face Hub to this disk: hf://org/name, or hf://org/name@revision.

`huggingface_hub` does so, with its own cache (HF_HOME), offline mode (HF_HUB_OFFLINE) and credentials (HF_TOKEN).
"""

import os
from contextlib import contextmanager
from pathlib import Path

from keras_bert_flow.extras import check_installed
from keras_bert_flow.terminal import abridge

SCHEME = "hf://"
# Of a repository with weights in several formats, one is fetched.
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
    "modules.json",
    "sentence_bert_config.json",
    "?_*/config.json",
    "task.json",
    "README.md",
)


def is_of_hub(address: str) -> bool:
    """Say whether an address is of the Hub."""
    return address.lower().startswith(SCHEME)


def split_address(address: str) -> tuple[str, str | None]:
    """Return the name of a model of the Hub, and the revision where one is named.

    Args:
        address: `org/name` or `org/name@revision`, with `hf://` before it or not.
    Raises:
        ValueError: it is none of a model.
    """
    name, _, revision = address[len(SCHEME) * is_of_hub(address) :].rstrip("/").partition("@")
    if not name or name.count("/") > 1:
        raise ValueError(f"A model of the Hub must be hf://org/name or hf://org/name@revision. Received: {address}.")
    return name, revision or None


def fetch_from_hub(address: str) -> Path:
    """Return the folder of the Hub's cache that holds a model: fetched, or found where it is there already.

    Raises:
        FileNotFoundError: there is no such model or revision, or it is not in the cache where the Hub cannot be asked.
        ValueError: the address is none of a model, it has no safetensors, or `huggingface_hub` is not installed.
        OSError: the Hub cannot be reached, or refuses.
    """
    check_installed(["huggingface_hub"])
    name, revision = split_address(address)
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    from huggingface_hub import snapshot_download

    with _explaining(address):
        folder = Path(snapshot_download(name, revision=revision, allow_patterns=list(FILES)))
    if not [*folder.glob("*.safetensors")]:
        raise ValueError(
            f"A model must have safetensors. Received: {address}, without them: no pickle is read. Ask for a revision "
            "that has them, such as @refs/pr/1, or convert it with transformers where it can be trusted."
        )
    return folder


@contextmanager
def _explaining(address: str):
    """Raise errors of the Hub as one line each."""
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
                raise raised(f"A model of the Hub must be there. Received: {address}, {reason}.") from None
        if isinstance(error, errors.HfHubHTTPError | OSError):
            raise explain_refusal("A model of the Hub must be fetched", address, error) from None
        raise


def explain_refusal(rule: str, address: str, error: Exception) -> OSError:
    """Return an error of the Hub, or of the way to it, as one line."""
    text = str(error).strip()
    first = abridge(text.splitlines()[0].rstrip(".") if text else type(error).__name__)
    return OSError(f"{rule}. Received: {address}: {first}. Try again.")

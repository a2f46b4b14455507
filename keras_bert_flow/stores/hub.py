"""Download models from the Hugging Face Hub (hf://org/name@revision), and upload them in one commit.

This uses `huggingface_hub`, with its own cache (HF_HOME), offline mode (HF_HUB_OFFLINE) and credentials (HF_TOKEN).
"""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from keras_bert_flow.console.terminal import abridge, hide_credentials
from keras_bert_flow.installed import check_installed
from keras_bert_flow.stores.store import NoAnswerError, answer_within

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


# Upload model directories to the Hugging Face Hub, in a single commit.

MAIN = "main"
CARD = "README.md"
# An upload is given up below this speed, since `huggingface_hub` would wait for an answer for ever.
COMMIT_SECONDS, LEAST_BYTES_PER_SECOND = 120.0, 50_000
# Front matter: the text between the first two lines of three dashes.
FRONT_MATTER = re.compile(rb"\A---\r?\n(.*?)^---\r?$", re.DOTALL | re.MULTILINE)
LICENSE = re.compile(rb"^license:[^\r\n]*", re.MULTILINE)
UNNAMED = "license: unknown"


def list_model_files(folder: Path) -> list[Path]:
    """Return the files of a model directory that belong to the model, in order; others are not uploaded."""
    return sorted({file for pattern in FILES for file in folder.glob(pattern) if file.is_file()})


def write_license(card: Path, license: str | None) -> bytes:
    """Return a model card with a license in its front matter.

    Args:
        card: the file.
        license: the Hub's identifier, such as `apache-2.0`; None keeps the card's own.
    Raises:
        FileNotFoundError: there is no card.
        ValueError: it has no front matter with a license, or names none and none is given.
    """
    content = card.read_bytes()
    front = FRONT_MATTER.search(content)
    found = LICENSE.search(front[1]) if front else None
    if not front or not found:
        raise ValueError(
            f"A model card must begin with front matter that names a license. Received: {card}, without. Begin it with "
            "the lines `---`, `license: NAME` and `---`."
        )
    if license is None and found[0].strip() == UNNAMED.encode():
        raise ValueError(
            f"The license of a model must be named by who publishes it. Received: {UNNAMED}, in {card}. Give --license "
            "such as apache-2.0, or other."
        )
    if license is None:
        return content
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]*", license):
        raise ValueError(f"A license must be named as the Hub does, such as apache-2.0. Received: {license!r}.")
    start = front.start(1)
    return content[: start + found.start()] + f"license: {license}".encode() + content[start + found.end() :]


def check_push(address: str, is_sent: bool = True) -> tuple[str, str]:
    """Check, without contacting the Hub, that a model can be uploaded; return its name and revision.

    Args:
        is_sent: whether it will be; else no token is needed, and the Hub may be in offline mode.
    Raises:
        ValueError: it is not the address of a model, the Hub allows no such name, there is no token, the Hub is in
            offline mode, or `huggingface_hub` is not installed.
    """
    check_installed(["huggingface_hub"])
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    name, revision = split_address(address)
    if "/" not in name:
        raise ValueError(f"A model must be pushed to org/name or org/name@revision. Received: {address}.")
    try:
        validate_repo_id(name)
    except HFValidationError:
        raise ValueError(
            "A name on the Hub must begin and end with a letter, digit or _ and hold nothing else but single - and ., "
            f"96 characters at most; .git must not end it. Received: {name!r}. Choose another."
        ) from None
    if revision is not None and not is_branch_name(revision):
        raise ValueError(f"A branch must have a name that git allows. Received: {revision!r}. Choose another.")
    if not is_sent:
        return name, revision or MAIN
    from huggingface_hub import constants, get_token

    if constants.HF_HUB_OFFLINE:
        raise ValueError("The Hub must be reachable to push a model. Received: HF_HUB_OFFLINE=1. Unset it.")
    if not get_token():
        raise ValueError(
            "Pushing a model needs a token that may write. Received: none. Set HF_TOKEN, or run `hf auth login`."
        )
    return name, revision or MAIN


def is_branch_name(name: str) -> bool:
    """Return whether git allows a name of a branch.

    Source: the rules of `git check-ref-format`, https://git-scm.com/docs/git-check-ref-format.
    """
    parts = name.split("/")
    return (
        not re.search(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{", name)
        and not name.startswith("-")
        and not name.endswith(".")
        and all(part and not part.startswith(".") and not part.endswith(".lock") for part in parts)
    )


def push_to_hub(
    folder: str | Path, address: str, license: str | None = None, private: bool = False, message: str | None = None
) -> str:
    """Upload a model directory to the Hub in one commit: all of it appears there, or nothing.

    The commit removes files of an earlier model that this one does not have, such as shards of its weights. The
    repository and the branch are created if they do not exist.

    Args:
        folder: a model directory, already checked.
        address: `org/name` or `org/name@branch`, optionally prefixed by `hf://`.
        license: the Hub's identifier; by default the model card's license.
        private: whether a newly created repository is private.
        message: commit message.
    Returns:
        `hf://org/name@commit`, the address to load it from.
    Raises:
        FileNotFoundError, ValueError: as for `check_push` and `write_license`.
        OSError: the Hub cannot be reached, or refuses.
    """
    folder = Path(folder)
    name, branch = check_push(address)
    card = write_license(folder / CARD, license)
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
    from huggingface_hub.utils import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()

    contents: dict[str, Any] = {str(file.relative_to(folder)): file for file in list_model_files(folder)}
    contents[CARD] = card
    api = HfApi()
    with _explaining_upload(address):
        ask_hub(lambda: api.create_repo(name, private=private or None, exist_ok=True), name)
        if branch != MAIN:
            ask_hub(lambda: api.create_branch(name, branch=branch, exist_ok=True), name)
        there = ask_hub(lambda: api.list_repo_files(name, revision=branch), name)
        operations = [CommitOperationAdd(path, content) for path, content in contents.items()]
        of_model = [
            path
            for path in there
            if any(Path(path).match(pattern) and path.count("/") == pattern.count("/") for pattern in FILES)
        ]
        operations += [CommitOperationDelete(path) for path in of_model if path not in contents]
        text = message or "Add a model made with keras-bert-flow"
        size = sum(
            len(content) if isinstance(content, bytes) else content.stat().st_size for content in contents.values()
        )
        commit = ask_hub(
            lambda: api.create_commit(name, operations, commit_message=text, revision=branch),
            name,
            COMMIT_SECONDS + size / LEAST_BYTES_PER_SECOND,
        )
    return f"hf://{name}@{commit.oid}"


@contextmanager
def _explaining_upload(address: str) -> Iterator[None]:
    """Turn errors of the Hub into one-line errors."""
    from huggingface_hub import errors

    try:
        yield
    except NoAnswerError:
        raise
    except errors.RepositoryNotFoundError:
        raise PermissionError(
            f"The Hub must let the token write. Received: {address}, which it may not. Check the name, and HF_TOKEN."
        ) from None
    except errors.HFValidationError:
        raise ValueError(f"A model must be pushed to org/name or org/name@revision. Received: {address}.") from None
    except Exception as error:  # also errors of its HTTP library, which differs between its releases
        raise explain_refusal("A model must be taken by the Hub", address, error) from error

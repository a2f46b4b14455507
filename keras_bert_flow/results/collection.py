"""Garbage collection of a store: choose the results that nothing needs any more, and remove them.

A result is kept because of its age, its rank among the newest of its stage, a lock, a run or command that needs it, or
because a kept result was made from it, or may have been. A result is renamed before its files are removed, so that a
half-removed folder never looks like a result.
"""

import fcntl
import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from keras_bert_flow.files.outputs import MANIFEST
from keras_bert_flow.files.paths import name_owner
from keras_bert_flow.results.lineage import REMOVED_SUFFIX, Result, find_results, list_sources
from keras_bert_flow.results.locks import Needs, find_needs, find_reader, locked, pausing_runs
from keras_bert_flow.results.stages.registry import STAGES

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}  # seconds
LEFTOVER_SECONDS = 86400.0  # how long an interrupted run is kept if no age is given
LEFTOVERS = ("unfinished", "set aside", "removed")


@dataclass(frozen=True)
class Choice:
    """Whether a result is kept, and why.

    Attributes:
        is_kept: False if it may be removed.
        reason: explanation for the user.
    """

    result: Result
    is_kept: bool
    reason: str


def read_age(text: str) -> float:
    """Parse an age such as 30d into seconds.

    Raises:
        ValueError: `text` is not an age.
    """
    match = re.fullmatch(r"([0-9]{1,6})([smhdw])", text)
    if not match:
        raise ValueError(f"An age must be a number with s, m, h, d or w. Received: {text}. Try 30d, thirty days.")
    return int(match[1]) * float(UNITS[match[2]])


def find_store(folder: Path) -> Path:
    """Return the store that a folder is or, if it is the folder of a stage by its path or its real one, is part of."""
    paths = (folder.absolute(), Path(os.path.realpath(folder)))
    return next((path.parent for path in paths if path.name in STAGES), folder)


def find_related(folder: Path) -> list[Result]:
    """Return the results in a folder and, if it is that of a stage, those of all stages of its store."""
    store = find_store(folder)
    found = find_results(store)
    return found if store == folder else [result for result in found if result.folder.parent.name in STAGES]


def is_within(result: Result, folder: Path) -> bool:
    """Return whether a result of `find_related` is in the folder itself."""
    return find_store(folder) == folder or os.path.realpath(result.folder.parent) == os.path.realpath(folder)


def choose(
    results: Sequence[Result],
    now: float,
    older_than: float | None,
    keep_last: int | None,
    needs: Sequence[Needs] = (),
    folder: Path | None = None,
) -> list[Choice]:
    """Decide for each result whether it is kept or may be removed.

    Args:
        results: all results of a store.
        now: seconds since 1970.
        older_than: seconds; younger results are kept.
        keep_last: number of newest whole results to keep per stage.
        needs: what the runs that are alive need.
        folder: the folder of a stage; results elsewhere are kept. None: all are in the folder that is tidied.
    """
    reasons: dict[Path, str] = {}
    for result in results:
        if folder is not None and not is_within(result, folder):
            reasons[result.folder] = f"not in {folder}"
        elif reason := _find_need(result, needs) or _find_reason(result, results, now, older_than, keep_last):
            reasons[result.folder] = reason
    for result in results:
        if result.folder in reasons and result.state != "removed" and not _tells_sources(result):
            _keep_earlier(result, results, reasons)
    waiting = [result for result in results if result.folder in reasons]
    while waiting:
        needing = waiting.pop()
        for needed in (held for source in list_sources(needing, results) for held in source.results):
            if needed.folder not in reasons:
                reasons[needed.folder] = f"{needing.stage} {needing.key} was made from it"
                waiting.append(needed)
    return [
        Choice(result, result.folder in reasons, reasons.get(result.folder) or _describe_removal(result))
        for result in results
    ]


def remove_results(
    folder: Path, chosen: Sequence[Result], choose_again: Callable[[Sequence[Result]], list[Choice]]
) -> tuple[list[Result], list[Choice]]:
    """Remove results, each only if a second check still allows it.

    Args:
        folder: the store, or the folder of a stage in it.
        chosen: the results to remove.
        choose_again: makes the choices for a list of results, that of `find_related`.
    Returns:
        The removed results, and the choices for those kept after all.
    """
    removed, kept = [], []
    store = find_store(folder)
    for result in chosen:
        # A run that started meanwhile may need the result: this check sees its lock.
        again = {choice.result.folder: choice for choice in choose_again(find_related(folder))}
        choice = again.get(result.folder)
        if choice is None:
            continue  # another process removed or published it
        if choice.is_kept:
            kept.append(choice)
            continue
        try:
            with locked(result.lock, wait=False):
                with pausing_runs(store), _unread(result):
                    reason = _find_need(result, find_needs(store))  # of a run that started since the check
                    aside = None if reason else _set_aside(result)
                if aside:
                    shutil.rmtree(aside)
                    removed.append(result)
                else:
                    kept.append(Choice(result, True, reason))
        except BlockingIOError:
            kept.append(Choice(result, True, find_reader(result.folder) or "a process has locked it"))
    return removed, kept


def _find_need(result: Result, needs: Iterable[Needs]) -> str:
    """Return which run that is alive needs a result, or may; empty if none does."""
    for need in needs:
        if result.key in need.keys:
            return f"needed by {need.holder}"
        if need.is_open and result.state != "removed":
            return f"may be needed by {need.holder}, which does not know yet"
    return ""


def _find_reason(
    result: Result, results: Sequence[Result], now: float, older_than: float | None, keep_last: int | None
) -> str:
    """Return why a result is kept for its own sake; empty if it is not."""
    if result.owner:
        return f"held by {result.owner}"
    if result.state == "damaged":
        return f"damaged: {result.fault}; remove it by hand"
    if _is_protected(result.folder):
        return f"of {name_owner(result.folder.lstat().st_uid)}, and you may not remove it"
    if result.state == "removed":
        return ""
    if result.is_linked:
        return "a link leads to it; remove both by hand"
    if result.named_by:
        return f"the link {result.named_by} leads to it; remove that first"
    if reader := find_reader(result.folder):
        return f"read by {reader}"
    age = now - result.changed_at
    if older_than is None and result.state in LEFTOVERS and age < LEFTOVER_SECONDS:
        return "left within the last day: the same command may go on with it"
    if older_than is not None and age < older_than:
        return "younger"
    if result.state in LEFTOVERS or keep_last is None:
        return ""
    newest = sorted(
        (other for other in results if other.stage == result.stage and other.state == "whole"),
        key=lambda other: (-other.changed_at, other.key),
    )
    return f"among the last {keep_last} of {result.stage}" if result in newest[:keep_last] else ""


def _is_protected(folder: Path) -> bool:
    """Return whether this user may not remove a folder with what is in it."""
    parent = folder.parent.stat()
    owners = (0, parent.st_uid, folder.lstat().st_uid)
    if parent.st_mode & stat.S_ISVTX and os.geteuid() not in owners:
        return True
    within = () if folder.is_symlink() else (place for place, _, _ in os.walk(folder))
    return not all(os.access(place, os.W_OK | os.X_OK) for place in (folder.parent, *within))


def _tells_sources(result: Result) -> bool:
    """Return whether a manifest says what a result is made from."""
    return result.manifest is not None and result.state != "unfinished"


def _keep_earlier(untold: Result, results: Sequence[Result], reasons: dict[Path, str]) -> None:
    """Keep everything that a result may be made from which has no manifest to say so."""
    order = {stage: number for number, stage in enumerate(STAGES)}
    place = order.get(untold.stage, len(order))
    for result in results:
        if result.state == "whole" and order.get(result.stage, 0) <= place:
            reasons.setdefault(result.folder, f"{untold.stage} {untold.key}, {untold.state}, may need it")


def _describe_removal(result: Result) -> str:
    return "nothing kept needs it" if result.state == "whole" else f"{result.state}, and no process works on it"


@contextmanager
def _unread(result: Result) -> Iterator[None]:
    """Keep commands from holding a result within the block; raise BlockingIOError if one does."""
    try:
        file = open(result.folder / MANIFEST, "rb")  # noqa: SIM115 closed below
    except FileNotFoundError:  # a leftover
        yield
        return
    with file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


def _set_aside(result: Result) -> Path:
    """Give a result the name of one that is being removed."""
    aside = result.folder.with_name(f".{result.output.name}{REMOVED_SUFFIX}")
    if result.state != "removed":
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(result.folder, aside)
    return aside

"""Choose results of a store: by key, folder or configuration, the newest of a name, and those that nothing needs."""

import fcntl
import logging
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_bert_flow.config.limits import BUILTIN
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.console.terminal import abridge
from keras_bert_flow.files.documents import read_json_object
from keras_bert_flow.files.outputs import MANIFEST
from keras_bert_flow.files.paths import check_local, find_address, name_owner
from keras_bert_flow.results.artifacts import file_digest, locked
from keras_bert_flow.results.lineage import (
    MODEL_LINK,
    REMOVED_SUFFIX,
    REPORT_LINKS,
    Result,
    find_links,
    find_part,
    find_results,
    find_source,
    list_sources,
    read_result,
    store_of,
)
from keras_bert_flow.results.publishing import PAUSE, Needs, find_needs, find_reader
from keras_bert_flow.results.stages import STAGES
from keras_bert_flow.results.stages.tasks import TABLE, resolve_augmented

SHOWN = 8
STORE = Path("runs")
WEIGHTS = "*.safetensors"  # files of a model directory that its copies have unchanged


def find_one(key: str, store: Path) -> tuple[Result, list[Result]]:
    """Return the result with a key, or in a folder, and all results of its store.

    Raises:
        FileNotFoundError: there is no such store.
        ValueError: no result has that key, or several have.
    """
    if (Path(key) / MANIFEST).is_file():
        return read_given(Path(key), None)
    if Path(key).absolute().parent.name in STAGES and Path(key).is_dir():  # one without a manifest, which is listed too
        results = find_results(store_of(Path(key)))
        if given := [result for result in results if result.folder.exists() and result.folder.samefile(key)]:
            return given[0], results
    results = find_results(store)
    found = [result for result in results if result.key == key] or [
        result for result in results if key and result.key.startswith(key)
    ]
    if len(found) == 1:
        return found[0], results
    keys = ", ".join(f"{result.stage} {result.key}" for result in (found or results)[:SHOWN])
    if found:
        raise ValueError(f"A key must be that of one result. Received: {key}, of {len(found)}: {keys}. Give a folder.")
    raise ValueError(
        f"A key must be one in the store. Received: {abridge(key)}, not in {store}. "
        f"{f'There are: {keys}.' if results else 'It is empty.'} `kbf runs list` shows all."
    )


def read_given(folder: Path, store: Path | None) -> tuple[Result, list[Result]]:
    """Return the result in a folder, and the results that it may have been made from.

    Raises:
        FileNotFoundError: it has no manifest.
        ValueError: its manifest is damaged.
    """
    if not (folder / MANIFEST).is_file():
        raise FileNotFoundError(
            f"A result must hold {MANIFEST}. Received: {folder}. Give what a stage published, such as what "
            "`kbf runs list` shows, or a model."
        )
    result = read_result(folder)
    if result.manifest is None:
        raise ValueError(f"A manifest must be whole. Received: {folder / MANIFEST}, damaged. Build the folder again.")
    results = find_results(store_of(folder) if store is None else store)
    return next((one for one in results if one.folder.exists() and one.folder.samefile(folder)), result), results


def read_made(folder: Path, store: Path | None) -> tuple[Result, str, list[Result]]:
    """Return the result that a folder is or is part of, which part it is, and the results that it may be made from.

    A model that was copied elsewhere is found by its weights.

    Args:
        folder: a result, a model directory in one, or a copy of such a directory.
        store: where to look for the results. None: around the result; for a copy, `runs`.
    Raises:
        FileNotFoundError: it is none of these, or no result has these weights.
        ValueError: the manifest is damaged.
    """
    real = folder.resolve()
    if (folder / MANIFEST).is_file():
        result, results = read_given(folder, store)
        return result, "", results
    weights = sorted(folder.glob(WEIGHTS))
    holder = next((parent for parent in real.parents if (parent / MANIFEST).is_file()), None)
    if weights and holder is not None:
        result, results = read_given(holder, store)
        return result, real.relative_to(holder).as_posix(), results
    if not weights:
        read_given(folder, store)  # says what a result is
    place = STORE if store is None else store
    digest = ",".join(f"{file.name}:{file_digest(file)}" for file in weights)
    results = find_results(place) if store is not None or place.is_dir() else []
    for result in results:
        part = find_part(digest, result.manifest) if result.manifest and result.state == "whole" else None
        if part is not None:
            return result, part, results
    raise FileNotFoundError(
        f"A model must be one that a result holds. Received: {folder}, whose weights none in {place} has. Give the "
        "folder of the results that it was made in as --runs."
    )


# Find the model that the runs of a configuration have made, so that its file can stand for the model.

# Sections that decide what a model is.
COMPARED = ("corpus", "vocabulary", "records", "model", "pretraining", "task", "finetuning")
SEED_RUNS = "pretrained/seed-*/run.json"

_logger = logging.getLogger(__name__)


def find_model(config: str | Path) -> Path:
    """Return the model directory of the newest finished run of a configuration, of the seed that is best on dev.

    A warning says which it is, and which sections of the configuration have changed since.

    Raises:
        FileNotFoundError: there is no such file, or no run of that `name` is finished.
        ValueError: the configuration is damaged.
    Example:
        >>> model = kbf.find_model("run.yaml")
        >>> model.relative_to("runs").as_posix()
        'finetuning/1/pretrained/seed-1/model'
    """
    settings = load_config(config)
    store = check_local(settings.runs)
    results = find_results(store) if store.is_dir() else []
    whole = [result for result in results if result.stage == "evaluation" and result.state == "whole"]
    for report in sorted(whole, key=lambda result: result.changed_at, reverse=True):
        if report.manifest is None or report.manifest.config.get("name") != settings.name:
            continue
        finetuned = next((held for source in list_sources(report, results) for held in source.results
                          if source.name == "finetuned"), None)  # fmt: skip
        if finetuned is not None and (found := find_best(finetuned.folder)):
            best, score, count = found
            theirs = report.manifest.config
            if settings.augmentation is not None and Path(table := theirs["task"]["train"]).name == TABLE:
                settings = resolve_augmented(settings, Path(table).parent)  # as the run has done
            ours = settings.model_dump(mode="json")
            changed = [name for name in COMPARED if name in theirs and not _are_same(ours.get(name), theirs[name])]
            since = f", made with another {', '.join(changed)}" if changed else ""
            _logger.warning(
                "%s is %s, the best of %d on dev (%.4g)%s.",
                *(config, best, count, score, since),
            )
            return best
    raise FileNotFoundError(
        f"A configuration must have a finished run to stand for its model. Received: {config}, and none of "
        f"`name: {settings.name}` in {settings.runs}. kbf run {config}"
    )


def find_best(finetuned: Path) -> tuple[Path, float, int] | None:
    """Return the model of a fine-tuning that is best on dev, its score, and the number of models; None without one."""
    runs = {path.parent / "model": read_json_object(path) for path in finetuned.glob(SEED_RUNS)}
    runs = {model: run for model, run in runs.items() if (model / "config.json").is_file()}
    if not runs:
        return None
    best = max(runs, key=lambda model: (runs[model]["score"], -runs[model]["seed"]))
    return best, runs[best]["score"], len(runs)


def _are_same(ours: Any, theirs: Any) -> bool:
    """Compare values, of which relative paths may have become absolute, and what is built in a path."""
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        return all(_are_same(ours[name], theirs[name]) for name in ours.keys() & theirs.keys())
    if isinstance(ours, list) and isinstance(theirs, list):
        return len(ours) == len(theirs) and all(map(_are_same, ours, theirs))
    if isinstance(ours, str) and isinstance(theirs, str):
        return ours in (theirs, BUILTIN) or os.path.abspath(ours) == theirs
    return ours == theirs or ours == [BUILTIN]


# Links in `runs/NAME/` that lead to the newest report and the newest model of the configuration of that name.

TAKEN = {*STAGES, "configs"}  # folders of a store that are no run's
MOST_BYTES = 200  # of a file name, of which most file systems take 255


def link_newest(evaluation: Path, name: str) -> Path | None:
    """Point the links of a name to a report and to the best of the models that it is of; return their folder.

    Each link is relative and replaced atomically; a file or folder of its name is left alone. None, and nothing
    changed, where the results are not on this disk, no folder can have the name, or the file system has no links: a run
    is as good without them.

    Args:
        evaluation: folder of the report.
        name: `name` of the configuration.
    """
    if find_address(evaluation) or (folder := find_folder(store_of(evaluation), name)) is None:
        return None
    targets = {report: evaluation / report for report in REPORT_LINKS if (evaluation / report).is_file()}
    with suppress(OSError, ValueError):
        finetuned = find_source(evaluation, "finetuned")
        if finetuned is not None and (best := find_best(finetuned)):
            targets[MODEL_LINK] = best[0]
        folder.mkdir(exist_ok=True)
        for link, target in targets.items():
            if os.path.lexists(folder / link) and not (folder / link).is_symlink():
                continue
            with tempfile.TemporaryDirectory(prefix=".", dir=folder) as place:
                made = Path(place) / link
                made.symlink_to(
                    os.path.relpath(target.resolve(), folder.resolve()), target_is_directory=target.is_dir()
                )
                os.replace(made, folder / link)
        return folder
    with suppress(OSError):  # one that was there, or has links of an earlier run
        folder.rmdir()
    return None


def find_folder(store: Path, name: str) -> Path | None:
    """Return the folder of a name's links; None if the store cannot have it or has something else there."""
    cleaned = "".join(letter if letter.isprintable() and letter not in "/\\" else "-" for letter in name).strip(". ")
    if not cleaned or cleaned in TAKEN or len(os.fsencode(cleaned)) > MOST_BYTES:
        return None
    folder = store / cleaned
    is_free = not os.path.lexists(folder) or (folder.is_dir() and not folder.is_symlink())
    return folder if is_free and not os.path.lexists(folder / MANIFEST) else None


def remove_dangling(store: Path) -> list[Path]:
    """Remove the links that lead nowhere, and their folder if nothing else is in it; return them."""
    dangling = [link for link in find_links(store) if not link.exists()]
    for link in dangling:
        link.unlink(missing_ok=True)
        with suppress(OSError):  # something else is in it
            link.parent.rmdir()
    return dangling


# Garbage collection of a store: choose the results that nothing needs any more, and remove them.
#
# A result is kept because of its age, its rank among the newest of its stage, a lock, a run or command that needs it,
# or because a kept result was made from it, or may have been. A result is renamed before its files are removed, so that
# a half-removed folder never looks like a result.

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
        folder: the folder of a stage; results elsewhere are kept, and not returned. None: all are in the folder that
            is tidied.
    """
    outside: set[Path] = set()
    if folder is not None and find_store(folder) != folder:
        real = os.path.realpath(folder)
        outside = {result.folder for result in results if os.path.realpath(result.folder.parent) != real}
    reasons = dict.fromkeys(outside, f"not in {folder}")
    for result in results:
        if result.folder in outside:
            continue
        if reason := _find_need(result, needs) or _find_reason(result, results, now, older_than, keep_last):
            reasons[result.folder] = reason
    order = {stage: number for number, stage in enumerate(STAGES)}
    for untold in results:  # no manifest says what these are made from: all of an earlier stage may be needed
        if untold.folder not in reasons or untold.state == "removed":
            continue
        if untold.manifest is None or untold.state == "unfinished":
            place = order.get(untold.stage, len(order))
            for result in results:
                if result.state == "whole" and order.get(result.stage, 0) <= place:
                    reasons.setdefault(result.folder, f"{untold.stage} {untold.key}, {untold.state}, may need it")
    waiting = [result for result in results if result.folder in reasons]
    while waiting:
        needing = waiting.pop()
        for needed in (held for source in list_sources(needing, results) for held in source.results):
            if needed.folder not in reasons:
                reasons[needed.folder] = f"{needing.stage} {needing.key} was made from it"
                waiting.append(needed)
    choices = []
    for result in results:
        if result.folder in outside:
            continue
        left = "nothing kept needs it" if result.state == "whole" else f"{result.state}, and no process works on it"
        choices.append(Choice(result, result.folder in reasons, reasons.get(result.folder) or left))
    return choices


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
            with locked(result.output.with_name(f".{result.output.name}.lock"), wait=False):
                with locked(store / PAUSE), _unread(result):
                    reason = _find_need(result, find_needs(store))  # of a run that started since the check
                    aside = result.folder.with_name(f".{result.output.name}{REMOVED_SUFFIX}")
                    if not reason and result.state != "removed":
                        shutil.rmtree(aside, ignore_errors=True)
                        os.rename(result.folder, aside)
                if reason:
                    kept.append(Choice(result, True, reason))
                else:
                    shutil.rmtree(aside)
                    removed.append(result)
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

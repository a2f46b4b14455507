"""Links in `runs/NAME/` that lead to the newest report and the newest model of the configuration of that name."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from keras_bert_flow.lineage.configured import find_best
from keras_bert_flow.lineage.links import find_source
from keras_bert_flow.lineage.results import MODEL_LINK, REPORT_LINKS, find_links, store_of
from keras_bert_flow.local_paths import find_address
from keras_bert_flow.outputs import MANIFEST
from keras_bert_flow.stages.registry import STAGES

TAKEN = {*STAGES, "configs"}  # folders of a store that are no run's
MOST_BYTES = 200  # of a file name, of which most file systems take 255


def link_newest(evaluation: Path, name: str) -> Path | None:
    """Point the links of a name to a report and to the best of the models that it is of; return their folder.

    Each link is relative and replaced atomically. None, and nothing changed, where the results are not on this disk,
    no folder can have the name, or the file system has no links: a run is as good without them.

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
            _replace_link(folder / link, target)
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


def _replace_link(link: Path, target: Path) -> None:
    """Make a relative link, or replace one; a file or folder of that name is left alone."""
    if os.path.lexists(link) and not link.is_symlink():
        return
    with tempfile.TemporaryDirectory(prefix=".", dir=link.parent) as folder:
        made = Path(folder) / link.name
        made.symlink_to(os.path.relpath(target.resolve(), link.parent.resolve()), target_is_directory=target.is_dir())
        os.replace(made, link)

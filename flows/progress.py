"""Show the progress of a stage on the page of a run: its lines in the log, and a bar from the last counting line."""

import re
import time
from collections.abc import Callable

from prefect.artifacts import create_progress_artifact, update_progress_artifact

from keras_bert_flow.terminal import JOINERS, escape_controls

# Lines of `keras_bert_flow.progress` and `job_progress`: "step 1,200 of 5,000: loss 6.913, 0:12:30 left", and
# "part 2 of 4, tokenizing: 1,200 of 4,904 documents"
PART = re.compile(r"\bpart (?P<number>\d+) of (?P<parts>\d+), [\w ]+(?P<rest>.*)")
SHARE = re.compile(r"(?P<done>\d[\d,]*) of (?P<total>\d[\d,]*)\b")
UPDATE_SECONDS = 5.0  # each update is a request; a page refreshes no more often


def parse_share(line: str) -> float | None:
    """Return the percentage done according to a line; None if the line has none."""
    if part := PART.search(line):
        before, parts = int(part["number"]) - 1, int(part["parts"])
        return (100 * before + (parse_share(part["rest"]) or 0.0)) / parts
    found = SHARE.search(line)
    if not found:
        return None
    done, total = (int(found[name].replace(",", "")) for name in ("done", "total"))
    return min(100.0, 100 * done / total) if total else None


class StageProgress:
    """Progress bar on the page of a task run, updated from the lines of its stage, which also go to the log."""

    def __init__(self, stage: str, log: Callable[[str], None]):
        """Show that a stage has started.

        Args:
            stage: its name, used in the artifact's key.
        """
        self._stage, self._log, self._updated_at = stage, log, -UPDATE_SECONDS
        self._artifact = create_progress_artifact(0.0, key=f"progress-{stage}", description=f"{stage}: started")

    def follow(self, line: str) -> None:
        self._log(line)
        share = parse_share(line)
        if share is not None and time.monotonic() - self._updated_at >= UPDATE_SECONDS:
            self._updated_at = time.monotonic()
            self._update(share, escape_controls(line, JOINERS))

    def finish(self) -> None:
        self._update(100.0, "done")

    def _update(self, share: float, words: str) -> None:
        update_progress_artifact(self._artifact, share, description=f"{self._stage}: {words}")

"""Show the progress of a stage on the page of a run: its lines in the log, and a bar from the last counting line."""

import re
import time
from collections.abc import Callable

from prefect.artifacts import create_progress_artifact, update_progress_artifact

from keras_bert_flow.locks import WAITING
from keras_bert_flow.terminal import JOINERS, escape_controls

# Lines of `keras_bert_flow.progress` and `job_progress`: "step 1,200 of 5,000: loss 6.913, 0:12:30 left",
# "run 2 of 6, step 40 of 120: pretrained/seed-2, loss 0.513", and "part 2 of 4, tokenizing: 1,200 of 4,904 documents".
# Other lines may hold such numbers too: "3 of 120 labels are unreachable".
PART = re.compile(r"(?:^run|.*, part) (?P<done>\d[\d,]*) of (?P<total>[1-9][\d,]*), (?P<rest>.*)")
SHARE = re.compile(r"(?P<word>step |[\w ]+: )(?P<done>\d[\d,]*) of (?P<total>[1-9][\d,]*)\b")
STEP = "step "
UPDATE_SECONDS = 5.0  # each update is a request; a page refreshes no more often


def parse_share(line: str) -> float | None:
    """Return the percentage done according to a line; None if the line has none."""
    if part := PART.match(line):
        return _read_share(part, SHARE.match(part["rest"]))
    found = SHARE.match(line)
    return _read_share(found) if found and found["word"] == STEP else None


def _read_share(found: re.Match[str], inner: re.Match[str] | None = None) -> float:
    """Return the percentage of a match; of a part, which is begun and not done, with what is done of it."""
    done, total = (float(found[name].replace(",", "")) for name in ("done", "total"))
    if "rest" in found.groupdict():
        done += (_read_share(inner) / 100 if inner else 0.0) - 1
    return min(100.0, max(0.0, 100 * done / total))


class StageProgress:
    """Progress bar on the page of a task run, updated from the lines of its stage, which also go to the log.

    It never moves back: a stage that resumes from a checkpoint repeats some steps.
    """

    def __init__(self, stage: str, log: Callable[[str], None]):
        """Show that a stage has started.

        Args:
            stage: its name, used in the artifact's key.
        """
        self._stage, self._log, self._updated_at, self._share = stage, log, -UPDATE_SECONDS, 0.0
        self._artifact = create_progress_artifact(0.0, key=f"progress-{stage}", description=f"{stage}: started")

    def follow(self, line: str) -> None:
        self._log(line)
        if line.startswith(WAITING):
            self._update(self._share, escape_controls(line, JOINERS))
            return
        share = parse_share(line)
        if share is not None and time.monotonic() - self._updated_at >= UPDATE_SECONDS:
            self._updated_at, self._share = time.monotonic(), max(share, self._share)
            self._update(self._share, escape_controls(line, JOINERS))

    def finish(self) -> None:
        self._update(100.0, "done")

    def _update(self, share: float, words: str) -> None:
        update_progress_artifact(self._artifact, share, description=f"{self._stage}: {words}")

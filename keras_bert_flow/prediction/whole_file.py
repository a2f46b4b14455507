"""Write a file atomically."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from keras_bert_flow.artifacts import removed_on_leaving, temporary_path
from keras_bert_flow.local_paths import check_local


@contextmanager
def writing_whole(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path, whose file replaces `path` if the block ends without an error."""
    unfinished = temporary_path(check_local(path))
    try:
        with removed_on_leaving(unfinished):
            yield unfinished
            with unfinished.open("rb") as file:
                os.fsync(file.fileno())
            unfinished.replace(path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise

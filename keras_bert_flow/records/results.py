"""Separate results from timings in the files of a published folder: content keys use the results only."""

import hashlib
from pathlib import Path
from typing import Any

from keras_bert_flow.artifacts import canonical_json
from keras_bert_flow.json_documents import read_json

# Files with timings, dates, paths or facts about the machine, from which nothing is made.
INFORMATIONAL = {"README.md", "log.jsonl", "events.out.tfevents.log", "rejected_inputs.txt"}
# JSON files of scores and timings, from which reports are made.
SCORES = {"run.json", "grid.json", "grid-random.json", "label-counts.json", "metrics.json"}
# Fields of these that differ between equal runs: speed, devices, and what a run was made from, which is in its key.
NOT_RESULTS = {"seconds", "elapsed_seconds", "tokens_per_second", "devices", "identity"}


def is_informational(path: Path) -> bool:
    return path.name in INFORMATIONAL


def digest_results(path: Path) -> str | None:
    """Return the sha256 of the scores in a file, without its timings; None for a file that is not one of `SCORES`."""
    if path.name not in SCORES:
        return None
    try:
        values = read_json(path)
    except ValueError:  # others may have files of this name
        return None
    return hashlib.sha256(canonical_json(_drop_timings(values)).encode(errors="surrogatepass")).hexdigest()


def _drop_timings(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _drop_timings(inner) for name, inner in value.items() if name not in NOT_RESULTS}
    return [_drop_timings(inner) for inner in value] if isinstance(value, list) else value

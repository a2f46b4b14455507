"""Separate results from measurements in the files of a published folder: content keys use the results only.

A measurement is what differs between equal runs: time, speed, memory, machine, date and paths. A field is one by its
name, wherever it is; a new one ends in one of `MEASURED_SUFFIXES`.
"""

import hashlib
from pathlib import Path
from typing import Any

from keras_bert_flow.artifacts import canonical_json
from keras_bert_flow.json_documents import read_json

# Files for people, with measurements, from which nothing is made.
INFORMATIONAL = {
    "README.md",
    "log.jsonl",
    "events.out.tfevents.log",
    "rejected_inputs.txt",
    "report.html",
    "report.md",
}
# JSON files of scores and measurements, from which reports are made.
SCORES = {"run.json", "grid.json", "grid-random.json", "label-counts.json", "metrics.json"}
ADAPTER = "adapter_config.json"  # names the path of its base
MEASURED_SUFFIXES = ("seconds", "_per_second", "peak_bytes")
# The devices and machine, when it began, in how many parts, where the base of an adapter is and where a run was copied
# from; and what it was made from, which is in its key.
MEASURED = {"devices", "machine", "began", "parts", "base_model_name_or_path", "reused_from", "identity"}


def is_informational(path: Path) -> bool:
    return path.name in INFORMATIONAL


def digest_results(path: Path) -> str | None:
    """Return the sha256 of the results in a file; None for a file without measurements."""
    if path.name not in SCORES and path.name != ADAPTER:
        return None
    try:
        values = read_json(path)
    except ValueError:  # others may have files of this name
        return None
    return hashlib.sha256(canonical_json(_drop_measurements(values)).encode(errors="surrogatepass")).hexdigest()


def is_measurement(name: str) -> bool:
    """Return whether a field of a JSON file is a measurement, by its name."""
    return name in MEASURED or name.endswith(MEASURED_SUFFIXES)


def _drop_measurements(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _drop_measurements(inner) for name, inner in value.items() if not is_measurement(name)}
    return [_drop_measurements(inner) for inner in value] if isinstance(value, list) else value

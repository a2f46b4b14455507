"""Check a folder of records against its manifest, before the first record is used."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_bert_flow.records.manifest import Manifest, check_folder
from keras_bert_flow.records.tfrecord import INDEX_SUFFIX, RECORD_SUFFIX

MAX_SHOWN = 100  # characters of a value


def check_records(folder: str | Path, digests: bool = True) -> Manifest:
    """Check a folder of records against its manifest, both ways: nothing missing or changed, and nothing added.

    Args:
        digests: also read every file and compare its sha256, which detects changes that keep the size.
    Raises:
        FileNotFoundError: the manifest or a file is missing.
        ValueError: a file has another size or content, or is not in the manifest; the message names it.
    """
    manifest = check_folder(folder, "records", digests)
    missing = [name for name in ("vocabulary_size", "sequence_length") if name not in manifest.config]
    if missing:
        raise ValueError(f"Records must say their {missing[0]}. Received: {folder}, without. Build the folder again.")
    check_records_config(manifest.config)
    extra = find_extra_files(folder, manifest)
    if extra:
        raise ValueError(
            f"Every file of records must be in the manifest. Received: {Path(folder) / extra[0]}, which is not. "
            "Move it away or build the folder again."
        )
    return manifest


def check_records_config(config: Mapping[str, Any]) -> None:
    """Raise ValueError unless the settings of records in a manifest, if present, have the right types."""
    fraction = config.get("masked_fraction", 0)
    checks = {name: _is_size(config.get(name, 1)) for name in ("vocabulary_size", "sequence_length", "max_predictions")}
    checks |= {name: isinstance(config.get(name, ""), str) for name in ("objective", "mask_unit")}
    checks |= {"cased": isinstance(config.get("cased", False), bool)}
    checks |= {"masked_fraction": type(fraction) in (int, float) and 0 <= fraction <= 1}
    for name in (name for name, holds in checks.items() if not holds):
        received = ascii(config[name])[:MAX_SHOWN]
        raise ValueError(
            f"The manifest of records must say how they were made. Received: {name}={received}. Build the folder again."
        )


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 < value < 1 << 31


def find_extra_files(folder: str | Path, manifest: Manifest) -> list[str]:
    """Return the record and index files that are not in the manifest; other files are allowed."""
    names = {path.name for path in Path(folder).iterdir() if path.name.endswith((RECORD_SUFFIX, INDEX_SUFFIX))}
    return sorted(names - {file.name for file in manifest.files})


def check_positions(sequence_length: int, max_positions: int) -> None:
    """Raise ValueError unless a model has positions for every token of the records."""
    if sequence_length > max_positions:
        raise ValueError(
            f"Records must fit the model's {max_positions} positions. Received: records of "
            f"{sequence_length} tokens. Raise model.max_positions or rebuild the records."
        )

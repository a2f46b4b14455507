"""Read what Weights & Biases wrote without a server: `run-<id>.wandb`, LevelDB's log of its own protocol buffers."""

import json
import struct

BLOCK_BYTES, FILE_HEADER_BYTES = 32768, 7
HEADER = struct.Struct("<IHB")  # checksum, length, kind: 1 whole, 2 first, 3 middle, 4 last part
WHOLE, LAST = 1, 4


def read_offline_runs(folder):
    """Return a dictionary for each process of each run, in the order of their start: id, config, history, summary."""
    return [_read_run(path) for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb"))]


def _read_run(path):
    from wandb.proto.wandb_internal_pb2 import Record

    run = {"id": path.stem.removeprefix("run-"), "config": {}, "history": [], "summary": {}, "exit_code": None}
    for data in _read_records(path.read_bytes()):
        record = Record.FromString(data)
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run["name"], run["group"] = record.run.display_name, record.run.run_group
            run["config"] |= _read_items(record.run.config.update)
        elif kind == "history":
            run["history"].append((record.history.step.num, _read_items(record.history.item)))
        elif kind == "summary":
            run["summary"] |= _read_items(record.summary.update)
        elif kind == "exit":
            run["exit_code"] = record.exit.exit_code
    return run


def _read_items(items):
    values = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
    return {name: value for name, value in values.items() if not name.startswith("_")}


def _read_records(data):
    place, parts = FILE_HEADER_BYTES, []
    while place + HEADER.size <= len(data):
        left = BLOCK_BYTES - place % BLOCK_BYTES
        if left < HEADER.size:
            place += left
            continue
        _, length, kind = HEADER.unpack_from(data, place)
        place += HEADER.size
        parts.append(data[place : place + length])
        place += length
        if kind in (WHOLE, LAST):
            yield b"".join(parts)
            parts = []

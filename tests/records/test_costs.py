import json
import subprocess
import sys
from datetime import UTC, datetime

import pytest

from keras_bert_flow.results.manifest import COSTS, check_folder, noting_cost, read_costs
from keras_bert_flow.results.publishing import Contents, publish

SPIN = "import time; held = b'x' * 80_000_000\nwhile time.process_time() < 0.5: pass"


def fill(work):
    (work / "a.txt").write_text("a")
    return Contents()


def test_cost_has_the_processes_that_were_started(tmp_path):
    began = datetime.now(UTC).replace(microsecond=0)
    with noting_cost(tmp_path):
        fill(tmp_path)
        subprocess.run([sys.executable, "-c", SPIN], check=True)
    (cost,) = read_costs(tmp_path)
    assert began <= datetime.fromisoformat(cost.began) <= datetime.now(UTC)
    assert cost.seconds >= 0.5 and cost.processor_seconds >= 0.5
    assert cost.peak_bytes >= 80_000_000 and "core" in cost.machine


def test_equal_results_have_equal_manifests_whatever_they_cost(tmp_path):
    for name in ("first", "second"):
        publish(tmp_path / name, "records", "key", fill)
    first, second = (tmp_path / name for name in ("first", "second"))
    assert (first / "manifest.json").read_bytes() == (second / "manifest.json").read_bytes()
    (first / COSTS).unlink()
    assert check_folder(first).key == "key" and read_costs(first) == [] and len(read_costs(second)) == 1


def test_costs_of_a_stopped_run_are_kept_for_the_next(tmp_path):
    def stop(work):
        fill(work)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        publish(tmp_path / "out", "pretraining", "key", stop, resumable=True)
    assert len(read_costs(publish(tmp_path / "out", "pretraining", "key", fill, resumable=True))) == 2


@pytest.mark.parametrize(
    "line",
    ["", "{", "[]", "null", '{"began": "today"}', '"' * 9, "\udc80"]
    + [json.dumps({"began": began, "seconds": seconds, "processor_seconds": 1, "peak_bytes": 1, "machine": "a"})
       for began, seconds in (("x", 1), (1, 1), ("2026-01-01", "1"), ("2026-01-01", -1), ("2026-01-01", None))],
)  # fmt: skip
def test_damaged_note_is_left_out(line, tmp_path):
    with noting_cost(tmp_path):
        fill(tmp_path)
    with open(tmp_path / COSTS, "a", encoding="utf-8", errors="surrogateescape") as file:
        file.write(line)
    assert len(read_costs(tmp_path)) == 1

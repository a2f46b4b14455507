"""What README, docs/python.md and CONTRIBUTING promise: the script runs as it stands, and named places exist."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.oracles.tiny_records import write_tiny_records
from tests.patience import PATIENCE_SECONDS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_documented_script_runs(tmp_path):
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    script = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    backend = os.environ.get("KERAS_BACKEND", "jax")
    script = script.replace('"jax"', repr(backend)).replace("total_steps=100", "total_steps=4")
    script = script.replace("steps_per_epoch=100", "steps_per_epoch=4").replace("batch_size=32", "batch_size=4")
    write_tiny_records(tmp_path / "out" / "records")
    (tmp_path / "reviews.tsv").write_text("text\tlabel\na fine film\tgood\na dull film\tbad\n")
    (tmp_path / "script.py").write_text(script + "\nprint([answer['label'] in task.labels for answer in answers])")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().endswith("[True, True]")


def test_places_that_are_named_exist():
    contributing = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    places = re.findall(r"`([a-z_]+(?:/[a-z_]+)+\.(?:py|yaml))`", README + contributing)
    assert len(places) > 10
    for place in places:
        assert (ROOT / place).is_file() or (ROOT / "keras_bert_flow" / place).is_file(), place

"""The same weights and the same batches give the same losses on every backend that is installed, for each objective."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.cross_backend.steps_child import train_all
from tests.oracles.objective_records import write_objective_records
from tests.patience import PATIENCE_SECONDS

BACKENDS = [name for name in ("jax", "torch", "tensorflow") if find_spec(name) is not None]
STEPS = 20
FAMILIES = {
    "mlm_nsp": "bert",
    "mlm": "roberta",
    "mlm_sop": "albert",
    "mlm_sbo": "bert",
    "rtd": "electra",
    "layers": "bert",
}


def run_steps(backend, families, folder):
    if backend == keras.backend.backend():
        return train_all(families, folder, STEPS)
    child = subprocess.run(
        [sys.executable, "-m", "tests.cross_backend.steps_child", json.dumps([families, str(folder), STEPS])],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"KERAS_BACKEND": backend},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        check=False,
    )
    assert child.returncode == 0, child.stderr[-2000:]
    return json.loads(child.stdout.splitlines()[-1])


@pytest.mark.skipif(len(BACKENDS) < 2, reason="needs two of jax, torch and tensorflow to compare")
@pytest.mark.parametrize("objectives", [["mlm_nsp"], ["mlm", "mlm_sop", "mlm_sbo", "rtd"], ["layers"]])
@pytest.mark.slow
def test_losses_agree_across_backends(objectives, tmp_path):
    for objective in objectives:
        write_objective_records(tmp_path / objective, "mlm" if objective == "layers" else objective)
    families = {objective: FAMILIES[objective] for objective in objectives}
    found = {backend: run_steps(backend, families, tmp_path) for backend in BACKENDS}
    for objective in objectives:
        losses = {backend: found[backend][objective] for backend in BACKENDS}
        expected = losses[BACKENDS[0]]
        assert expected[-1] < expected[0] - 0.2  # it learns, so that a difference in any step shows later
        for backend in BACKENDS[1:]:
            # float32 roundings of 6e-8, which AdamW's division enlarges where gradients are small, over 20 steps.
            np.testing.assert_allclose(losses[backend], expected, rtol=1e-4, err_msg=f"{objective}, {backend}")

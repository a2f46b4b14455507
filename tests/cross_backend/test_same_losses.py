"""The same weights and the same batches give the same losses on every backend that is installed."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import keras
import numpy as np
import pytest

from keras_bert_flow.conversion.model_directory import save_model_directory
from keras_bert_flow.training.precision import seed_everything
from keras_bert_flow.training.pretraining.pretrain import make_pretrainer
from tests.cross_backend.steps_child import train_steps
from tests.oracles.tiny_records import make_tiny_config, write_tiny_records
from tests.patience import PATIENCE_SECONDS

BACKENDS = [name for name in ("jax", "torch", "tensorflow") if find_spec(name) is not None]
STEPS = 20


def run_steps(backend, model, records):
    if backend == keras.backend.backend():
        return train_steps(model, records, STEPS)
    child = subprocess.run(
        [sys.executable, "-m", "tests.cross_backend.steps_child", str(model), str(records), str(STEPS)],
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
def test_losses_agree_across_backends(tmp_path):
    records = write_tiny_records(tmp_path / "records")
    seed_everything(3)
    model = make_pretrainer(make_tiny_config({"num_layers": 2}).model, 50)
    save_model_directory(model, tmp_path / "model", records / "vocab.txt")
    losses = {backend: run_steps(backend, tmp_path / "model", records) for backend in BACKENDS}
    expected = losses[BACKENDS[0]]
    assert expected[-1] < expected[0] - 0.2  # it learns, so that a difference in any step shows later
    for backend in BACKENDS[1:]:
        # float32 roundings of 6e-8, which AdamW's division enlarges where gradients are small, over 20 steps.
        np.testing.assert_allclose(losses[backend], expected, rtol=1e-4, err_msg=backend)

"""What tests of loggers start from."""

import pytest

from tests.tracking.mlflow_files import EXPERIMENT


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with the files of both loggers, which have no server."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file://{tmp_path}/store")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # to make a database takes 14 s
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    return tmp_path

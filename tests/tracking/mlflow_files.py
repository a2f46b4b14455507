"""Read what MLflow keeps in a folder, by its own client."""

import pytest

EXPERIMENT = "of a test"


def find_runs(place):
    """Return the client and the runs of a folder's store, the newest first."""
    mlflow = pytest.importorskip("mlflow")
    client = mlflow.MlflowClient(f"file://{place}/store")
    experiment = client.get_experiment_by_name(EXPERIMENT)
    return client, client.search_runs([experiment.experiment_id]) if experiment else []


def read_history(client, run, metric="loss"):
    return [(entry.step, entry.value) for entry in client.get_metric_history(run.info.run_id, metric)]

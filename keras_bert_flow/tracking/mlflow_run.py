"""A run on an MLflow server; MLflow's own environment variables set the server and the experiment."""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag
from mlflow.exceptions import MlflowException

from keras_bert_flow.tracking.logger import FAILED, FINAL, FINISHED, STOPPED, RunFacts, find_numbers

ID_TAG = "keras_bert_flow.run"
STATUSES = {FINISHED: "FINISHED", STOPPED: "KILLED", FAILED: "FAILED"}
ALWAYS_LOGGED = "elapsed_seconds"  # in every line of a log
MAX_METRICS, MAX_PARAMS, MAX_CHARACTERS = 1000, 100, 6000  # per request, the last per parameter value


class MlflowRun:
    """The MLflow run whose tag `keras_bert_flow.run` is the id; the server knows which steps have been logged."""

    def open(self, facts: RunFacts) -> int:
        self._client = MlflowClient()
        experiment = self._find_experiment()
        found = self._client.search_runs([experiment], f"tags.`{ID_TAG}` = '{facts.id}'", max_results=1)
        self._last_step = -1
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            history = self._client.get_metric_history(self._id, ALWAYS_LOGGED)
            self._last_step = max((metric.step for metric in history), default=-1)
        else:
            tags = {ID_TAG: facts.id, "stage": facts.stage, "content_key": facts.key}
            self._id = self._client.create_run(experiment, run_name=facts.name, tags=tags).info.run_id
        self._add_parameters(facts.parameters, found[0].data.params if found else {})
        return self._last_step

    def log(self, lines: Sequence[Mapping[str, Any]]) -> None:
        for metrics in _pack(lines):
            self._client.log_batch(self._id, metrics=metrics)
            self._last_step = metrics[-1].step

    def close(self, status: str, metrics: Mapping[str, Any]) -> None:
        step, final = max(self._last_step, 0), find_numbers(metrics)
        if final:
            now = round(time.time() * 1000)
            self._client.log_batch(
                self._id, metrics=[Metric(FINAL + name, value, now, step) for name, value in final.items()]
            )
        self._client.set_terminated(self._id, STATUSES[status])

    def _find_experiment(self) -> str:
        if number := os.environ.get("MLFLOW_EXPERIMENT_ID"):
            return number
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME") or "Default"
        experiment = self._client.get_experiment_by_name(name)
        if experiment is None:
            try:
                return self._client.create_experiment(name)
            except MlflowException:  # another run has just created it
                experiment = self._client.get_experiment_by_name(name)
                if experiment is None:
                    raise
        return experiment.experiment_id

    def _add_parameters(self, parameters: Mapping[str, Any], known: Mapping[str, str]) -> None:
        """Log parameters, and as tags those changed since the run started, since MLflow cannot overwrite parameters."""
        written = {name: value if isinstance(value, str) else json.dumps(value) for name, value in parameters.items()}
        values = {name: value[:MAX_CHARACTERS] for name, value in written.items()}
        new = [Param(name, value) for name, value in values.items() if name not in known]
        for start in range(0, len(new), MAX_PARAMS):
            self._client.log_batch(self._id, params=new[start : start + MAX_PARAMS])
        changed = [RunTag(f"changed.{name}", text) for name, text in values.items() if known.get(name, text) != text]
        if changed:
            self._client.log_batch(self._id, tags=changed)


def _pack(lines: Sequence[Mapping[str, Any]]) -> Iterator[list[Metric]]:
    """Group the metrics of whole lines into requests of at most `MAX_METRICS`."""
    packed: list[Metric] = []
    for line in lines:
        now = round(time.time() * 1000)
        metrics = [Metric(name, value, now, line["step"]) for name, value in find_numbers(line).items()]
        if packed and len(packed) + len(metrics) > MAX_METRICS:
            yield packed
            packed = []
        packed += metrics
    if packed:
        yield packed

"""Name the folder of a search by what its trials have in common, so that the same command resumes it."""

from collections.abc import Callable, Sequence
from pathlib import Path

from flows.settling import local_runs
from flows.stages import vocabulary_stage
from flows.trial import settle_trial
from keras_bert_flow.artifacts import content_key
from keras_bert_flow.config.tuning import TuningConfig
from keras_bert_flow.stages.digests import drop_paths, task_digests

FOLDER = "tuning"
NOT_IN_KEY = {"name", "runs", "beam", "distribution", "loggers", "tuning", "evaluation"}


def find_search_folder(
    config_path: str,
    overrides: Sequence[str],
    tuning: TuningConfig,
    objective: str,
    on_line: Callable[[str], None],
) -> Path:
    """Return the local folder of a search, keyed by its text, tables and settings except the number of trials."""
    config = settle_trial(config_path, [*overrides], on_line)
    settings = drop_paths(config.model_dump(mode="json", exclude=NOT_IN_KEY))
    settings["tuning"] = tuning.model_dump(mode="json", exclude={"trials", "objective"}) | {"objective": objective}
    inputs = {"text": vocabulary_stage(config).key}
    if objective == "dev_score":
        inputs |= task_digests(config)
    return local_runs(config) / FOLDER / content_key(FOLDER, settings, inputs, {})

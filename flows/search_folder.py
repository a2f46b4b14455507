"""Name the folder of a search by what its trials have in common, so that the same command resumes it."""

from collections.abc import Callable, Sequence
from pathlib import Path

from flows.settling import local_runs
from flows.stages import find_storage, vocabulary_stage
from flows.trial import settle_trial
from keras_bert_flow.artifacts import content_key
from keras_bert_flow.config.tuning import TuningConfig
from keras_bert_flow.input_states import InputStates, hold
from keras_bert_flow.stages.digests import corpus_digests, drop_paths, folder_digest, hold_corpus, task_digests
from keras_bert_flow.stages.registry import IN_ORDER
from keras_bert_flow.stores.fetching import fetch

FOLDER = "tuning"
REVISION = 1
NOT_IN_KEY = {"name", "runs", "beam", "distribution", "loggers", "tuning", "evaluation"}


def find_search_folder(
    config_path: str,
    overrides: Sequence[str],
    tuning: TuningConfig,
    objective: str,
    on_line: Callable[[str], None],
) -> tuple[Path, InputStates]:
    """Return the local folder of a search, keyed by what its trials have in common, and the states of these inputs.

    That is the text, the tables, the vocabulary or model that they start from, and the settings except the number of
    trials.
    """
    config = settle_trial(config_path, [*overrides], on_line)
    corpus, held = hold_corpus(config.corpus, find_storage(config))
    config = config.model_copy(update={"corpus": corpus})
    tables = [config.task.train, config.task.dev] if objective == "dev_score" else []
    held |= hold(*tables, *filter(None, (config.vocabulary.file, config.initial_model)))
    settings = drop_paths(config.model_dump(mode="json", exclude=NOT_IN_KEY))
    settings["revisions"] = {stage.name: stage.revision for stage in IN_ORDER}  # of what gives a trial its score
    settings["tuning"] = tuning.model_dump(mode="json", exclude={"trials", "objective"}) | {"objective": objective}
    inputs = {"text": vocabulary_stage(config).key}
    if config.vocabulary.file:  # then that is all that the key of the vocabulary names
        inputs |= corpus_digests(corpus, find_storage(config))
    if config.initial_model:
        inputs["initial_model"] = folder_digest(fetch(config.initial_model))
    if objective == "dev_score":
        inputs |= task_digests(config)
    return local_runs(config) / FOLDER / content_key(FOLDER, settings, inputs, REVISION), held

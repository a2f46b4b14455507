"""The random-weights baseline: trained until it stops improving, once for all models of one shape."""

import json
import logging
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_bert_flow.artifacts import canonical_json, content_key
from keras_bert_flow.config.finetuning import MERGED
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.json_documents import read_json_object
from keras_bert_flow.records.manifest import check_folder, read_manifest
from keras_bert_flow.training.finetuning.grid import GRIDS
from keras_bert_flow.training.finetuning.task_runs import RANDOM, RUN_FILE
from keras_bert_flow.training.state.identity import REVISION, drop_earlier

WEIGHTS = ".safetensors"
# Settings of `finetuning` that decide which runs there are, not what one is; and those that a grid chooses.
ABOUT_OTHERS = ("seeds", "compare_random", "compare_initial", "label_counts")
REUSED = "reused_from"  # field of `run.json`
CHOSEN = ("learning_rate", "epochs", "batch_size", "accumulate_batches")

_logger = logging.getLogger(__name__)


def with_random_training(config: PipelineConfig) -> PipelineConfig:
    """Return the configuration of runs from random weights.

    They learn more slowly than pre-trained weights, so the number of fine-tuning epochs would not suffice. They have up
    to `random_max_epochs`, stop when neither the dev score nor the dev loss has improved for `random_patience_epochs`,
    and publish the model with the best dev score, which errs in their favour. All their weights are trained, since
    frozen random weights would be no baseline. All other settings are those of the pre-trained model. With a grid, all
    of its learning rates and batch sizes are tried as well.
    """
    settings = config.finetuning
    epochs = max(settings.random_max_epochs, *(settings.grid.epochs if settings.grid else (settings.epochs,)))
    grid = settings.grid and settings.grid.model_copy(update={"epochs": (epochs,)})
    changes = {"epochs": epochs, "patience_epochs": settings.random_patience_epochs, "publish": "best", "grid": grid}
    changes |= {"frozen_layers": None, "lora_rank": None, "lora_output": MERGED}
    return config.model_copy(update={"finetuning": settings.model_copy(update=changes)})


def baseline_key(identity: Mapping[str, Any]) -> str:
    """Return the content key of runs from random weights, of whose model everything but the weights counts.

    Args:
        identity: see `finetuning_identity`.
    """
    facts = json.loads(canonical_json(identity))
    settings, files = facts.pop("finetuning"), facts.pop("model")
    left_out = {*ABOUT_OTHERS, *CHOSEN} - {"seeds"} if settings["grid"] else {*ABOUT_OTHERS}
    facts |= {"finetuning": {name: value for name, value in settings.items() if name not in left_out}}
    files = {name: digest for name, digest in files.items() if not name.endswith(WEIGHTS)}
    return content_key("random baseline", facts, files, facts[REVISION])


def reuse_baseline(config: PipelineConfig, results: Path, work: Path, identity: Mapping[str, Any]) -> None:
    """Copy the runs from random weights that another result has, so that another pre-training does not repeat them.

    Training them again would give the same bytes. What is damaged is passed over.

    Args:
        config: of the runs, as `with_random_training` returns it.
        results: the folder of the published results.
        work: gets `random/seed-<n>/`; with a grid all of them, `grid-random/` and last of all `grid-random.json`. What
            is already there stays.
        identity: of the runs.
    """
    key, grid = baseline_key(identity), GRIDS[RANDOM]
    folders = [f"seed-{seed}" for seed in config.finetuning.seeds]
    for result in sorted(results.glob("[!.]*")):
        found = [name for name in folders if _has_key(result, name, key)]
        if config.finetuning.grid is not None and found != folders:
            continue
        wanted = [f"{RANDOM}/{name}" for name in found]
        if config.finetuning.grid is not None:
            wanted += [grid, f"{grid}.json"]
        wanted = [name for name in wanted if not (work / name).exists()]
        if not wanted or not _is_whole(result):
            continue
        for name in wanted:
            _copy(result, work, name, identity)
        _logger.info("Runs from random weights are those of %s: %s.", result, ", ".join(wanted))


def _has_key(result: Path, name: str, key: str) -> bool:
    try:
        identity = read_json_object(result / RANDOM / name / RUN_FILE)["identity"]
        if REVISION not in identity:  # made by an earlier version; a revision in the manifest then says which it equals
            identity = drop_earlier(identity) | {REVISION: read_manifest(result).revision}
        return baseline_key(identity) == key
    except (OSError, ValueError, KeyError, AttributeError):
        return False


def _is_whole(result: Path) -> bool:
    try:
        check_folder(result, "finetuning")
    except (OSError, ValueError) as error:
        _logger.warning("Runs from random weights are trained again, since those of %s are damaged: %s", result, error)
        return False
    return True


def _copy(result: Path, work: Path, name: str, identity: Mapping[str, Any]) -> None:
    """Copy a file or a folder whole or not at all; a run gets the identity of those that it is now one of."""
    part = work / f".{name.replace('/', '-')}.part"
    if (result / name).is_file():
        shutil.copyfile(result / name, part)
    else:
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(result / name, part)
    if (part / RUN_FILE).is_file():
        run = read_json_object(part / RUN_FILE)
        settings = {name: run["identity"]["finetuning"][name] for name in CHOSEN}
        now = {**identity, "finetuning": {**identity["finetuning"], **settings}}
        run |= {"identity": now, REUSED: str(result)}
        (part / RUN_FILE).write_text(json.dumps(run))
    (work / name).parent.mkdir(parents=True, exist_ok=True)
    os.replace(part, work / name)

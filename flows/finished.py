"""Find the finished stages of a configuration and their published folders."""

from collections.abc import Sequence
from pathlib import Path

from flows.stages import MODEL, StageRun, finetuning_stage, make_all, make_pretrained, make_records
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.local_paths import find_address, name_path
from keras_bert_flow.records.manifest import MANIFEST, check_folder


class Unfinished(Exception):
    """A stage is not finished and must run."""


def find_all(config: PipelineConfig) -> list[StageRun] | None:
    """Return the stages of a run in order, with the report's last, if all are finished; else None.

    Args:
        config: the result of `settle_config`.
    Raises:
        ValueError: more text of a result was rejected than the configuration allows.
    """
    found: list[StageRun] = []

    def find(stage: StageRun) -> Path:
        if not stage.is_finished():
            raise Unfinished
        found.append(stage)
        return stage.folder

    try:
        make_all(config, find)
    except Unfinished:
        return None
    return found


def find_records(config: PipelineConfig) -> list[Path]:
    """Return the finished records of each phase of pre-training; FileNotFoundError if any are missing."""
    return make_records(config, lambda stage: _require(stage, "preprocess"))


def find_pretrained(config: PipelineConfig, records: Sequence[Path]) -> list[Path]:
    """Return the finished folder of each phase of pre-training; FileNotFoundError if any is missing."""
    return make_pretrained(config, records, lambda stage: _require(stage, "pretrain"))


def find_finetuned(config: PipelineConfig, pretrained: Path) -> Path:
    return _require(finetuning_stage(config, pretrained / MODEL), "finetune")


def _require(stage: StageRun, flow_name: str) -> Path:
    if not find_address(stage.folder) and (stage.folder / MANIFEST).is_file():
        check_folder(stage.folder)  # its error names the damaged file
    if not stage.is_finished():
        raise FileNotFoundError(
            f"`{stage.name}` must be finished first. Received: {name_path(stage.folder)}, not there. "
            f"Run the flow `{flow_name}` with the same configuration, or name the folder."
        )
    return stage.folder

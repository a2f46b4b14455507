"""Find what the stages of a configuration have published."""

from collections.abc import Sequence
from pathlib import Path

from flows.stages import MODEL, StageRun, finetuning_stage, make_all, make_pretrained, make_records
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.local_paths import find_address, name_path
from keras_bert_flow.records.manifest import MANIFEST, check_folder


class Unfinished(Exception):
    """A stage must run."""


def find_all(config: PipelineConfig) -> list[StageRun] | None:
    """Return the stages of a run in order, the report's last, where all are finished; else None.

    Args:
        config: of `settle_config`.
    Raises:
        ValueError: a result lost more of its text than is allowed now.
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
    """Return the records of each phase of pre-training."""
    return make_records(config, lambda stage: _require(stage, "preprocess"))


def find_pretrained(config: PipelineConfig, records: Sequence[Path]) -> list[Path]:
    """Return what each phase of pre-training made."""
    return make_pretrained(config, records, lambda stage: _require(stage, "pretrain"))


def find_finetuned(config: PipelineConfig, pretrained: Path) -> Path:
    return _require(finetuning_stage(config, pretrained / MODEL), "finetune")


def _require(stage: StageRun, flow_name: str) -> Path:
    if not find_address(stage.folder) and (stage.folder / MANIFEST).is_file():
        check_folder(stage.folder)  # names the file that is damaged
    if not stage.is_finished():
        raise FileNotFoundError(
            f"`{stage.name}` must be finished first. Received: {name_path(stage.folder)}, not there. "
            f"Run the flow `{flow_name}` with the same configuration, or name the folder."
        )
    return stage.folder

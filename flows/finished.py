"""Find what the earlier stages of a configuration have published, for flows that run one stage alone."""

from collections.abc import Sequence
from pathlib import Path

from flows.stages import MODEL, StageRun, finetuning_stage, make_pretrained, make_records
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.local_paths import find_address, name_path
from keras_bert_flow.records.manifest import MANIFEST, check_folder


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

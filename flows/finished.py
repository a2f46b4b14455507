"""Find what the earlier stages of a configuration have published, for flows that run one stage alone."""

from pathlib import Path

from flows.stages import Stage, finetuning_stage, pretraining_stage, records_stage, vocabulary_stage
from keras_bert_flow.config import PipelineConfig

MODEL = "model"  # the model directory within a folder of pre-training


def find_records(config: PipelineConfig) -> Path:
    vocabulary = _require(vocabulary_stage(config), "preprocess")
    return _require(records_stage(config, vocabulary), "preprocess")


def find_pretrained(config: PipelineConfig, records: Path) -> Path:
    return _require(pretraining_stage(config, records), "pretrain")


def find_finetuned(config: PipelineConfig, pretrained: Path) -> Path:
    return _require(finetuning_stage(config, pretrained / MODEL), "finetune")


def _require(stage: Stage, flow_name: str) -> Path:
    if not stage.is_finished():
        raise FileNotFoundError(
            f"`{stage.name}` must be finished first. Received: {stage.folder}, not there. "
            f"Run the flow `{flow_name}` with the same configuration, or name the folder."
        )
    return stage.folder

"""Names of the stages of a run, determined without its keys and inputs."""

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.settings import BUILTIN


def needs_builtin(config: PipelineConfig) -> bool:
    """Return whether the built-in corpus or task is written to files first."""
    return BUILTIN in config.corpus.input or config.task.train == BUILTIN


def name_stages(config: PipelineConfig) -> list[str]:
    """Return the stages in execution order; with a second phase of pre-training, two stages occur twice."""
    phases = len(config.phases)
    counts = {"corpus": int(needs_builtin(config)), "vocabulary": 1, "records": phases}
    counts |= {"pretraining": 0 if config.has_own_teacher else phases}
    counts |= {"distillation": int(config.distillation is not None), "finetuning": 1, "evaluation": 1}
    return [name for name, count in counts.items() for _ in range(count)]

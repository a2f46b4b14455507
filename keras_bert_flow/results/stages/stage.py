"""A stage of a run, and its content key."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from keras_bert_flow.config.limits import BUILTIN
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.config.pretraining import AUTO
from keras_bert_flow.results.artifacts import content_key


@dataclass(frozen=True)
class Stage:
    """A stage of a run, which publishes a folder under its content key.

    A key covers the settings, the digests of the inputs and the revision. Anything not in the key (worker options,
    progress, the number of Beam workers) must not change a byte of the result.

    Attributes:
        name: name of the stage, and of the folder with its results.
        command: subcommand of `kbf`.
        made_by: module of the function that makes the result.
        revision: raised by every change with which the same settings and inputs give another result. The golden results
            of `tests/golden` fail until it is.
        options: input in the manifest → option of the command that takes it.
        reads_text: whether the command reads the corpus.
        reads_tables: whether it reads the tables of the task.
    """

    name: str
    command: str
    made_by: str
    revision: int
    options: Mapping[str, str] = field(default_factory=dict, hash=False)
    reads_text: bool = False
    reads_tables: bool = False

    def make_key(self, settings: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
        """Return the content key for settings and digests of inputs."""
        return content_key(self.name, settings, inputs, self.revision)


def refuse_auto(**precisions: str) -> None:
    """Raise ValueError for the precision `auto` in a key, since its meaning depends on the machine."""
    for section, precision in precisions.items():
        if precision == AUTO:
            raise ValueError(
                f"A key must name the precision. Received: {section}.precision=auto. Resolve the configuration first: "
                "precision_choice.resolve_precision(config)."
            )


# Names of the stages of a run, determined without its keys and inputs.


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

"""The form of a stage, and its content key."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keras_bert_flow.artifacts import content_key
from keras_bert_flow.config.optimization import AUTO
from keras_bert_flow.import_closure import code_digests


@dataclass(frozen=True)
class Stage:
    """A step of a run, which publishes a folder under its content key.

    A key names settings, digests of inputs and the code of every module that the stage's own imports. What is not in a
    key (worker options, progress, the number of Beam workers) may not change a byte of the result.

    Attributes:
        name: also of the folder in which its results lie.
        command: of `kbf`.
        made_by: module of the function that makes its result.
    """

    name: str
    command: str
    made_by: str

    def make_key(self, settings: Mapping[str, Any], inputs: Mapping[str, str]) -> str:
        """Return the content key for settings and digests of inputs."""
        return content_key(self.name, settings, inputs, self.digest_code())

    def digest_code(self) -> dict[str, str]:
        """Digest each module that the stage is made with."""
        return code_digests(self.made_by)


def refuse_auto(**precisions: str) -> None:
    """Let no key say `auto`, which means another arithmetic on another machine."""
    for section, precision in precisions.items():
        if precision == AUTO:
            raise ValueError(
                f"A key must name the precision. Received: {section}.precision=auto. Resolve the configuration first: "
                "precision_choice.resolve_precision(config)."
            )

"""A stage of a run, and its content key."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from keras_bert_flow.artifacts import content_key
from keras_bert_flow.config.optimization import AUTO


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
    """

    name: str
    command: str
    made_by: str
    revision: int

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

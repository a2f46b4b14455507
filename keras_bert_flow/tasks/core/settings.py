"""Base class of task settings, and types that several kinds share.

Each kind declares its settings once, as a frozen dataclass in the `settings.py` of its folder. The task inherits them,
and `config.finetuning` makes the section `task` of a configuration from them, with descriptions and limits.
"""

from typing import Annotated, Any, ClassVar

from pydantic import Field


class TaskSettings:
    """Base class of the settings of a kind of task.

    Attributes:
        kind: name of the kind in a configuration and in a model directory.
        is_pooled: whether the head predicts from one vector per text, so that `pooling` and a probe apply.
        has_head: whether the model has weights besides its encoder.
        is_calibrated: whether `calibrate` applies.
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]  # each kind is a dataclass
    kind: ClassVar[str]
    is_pooled: ClassVar[bool] = False
    has_head: ClassVar[bool] = True
    is_calibrated: ClassVar[bool] = False


Header = Annotated[bool, Field(description="The first line of a .tsv or .csv names the columns.")]
COMPARED = "Metric by which runs are compared"

"""Base class of all settings, and upper limits far beyond what anybody trains.

A slip of the keyboard would otherwise take all memory, or a year.
"""

from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from keras_bert_flow.files.paths import check_local

MOST_PIECES = 10_000_000
MOST_SHARDS = 100_000
MOST_LAYERS, MOST_HEADS = 1_000, 4_096
MOST_UNITS = 1 << 16
MOST_POSITIONS = MOST_SEQUENCES = 1 << 20
MOST_STEPS = MOST_EXAMPLES = 10**12
MOST_EPOCHS = 100_000
MOST_WEIGHT = 1_000_000  # of a loss
MOST_PROCESSES = 1_000
Seed = Annotated[int, Field(ge=0, lt=1 << 32)]  # as NumPy and Keras take them


# Base class of all settings, and types that several sections use.

BUILTIN = "builtin"


def _check_path(path: str) -> str:
    check_local(path, "This path")
    return path


LocalPath = Annotated[str, AfterValidator(_check_path)]  # a path on the disks of this machine


class Settings(BaseModel):
    """Frozen settings that refuse unknown keys."""

    # YAML reads `text: 3` as a number; a column may be named so
    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        protected_namespaces=(),
        validate_default=True,
        coerce_numbers_to_str=True,
        allow_inf_nan=False,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_booleans(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuse true and false for a number: pydantic would read them as 1 and 0."""
        given = value if isinstance(value, list | tuple) else [value]
        found = next((one for one in given if isinstance(one, bool)), None)
        if found is not None and info.field_name is not None:
            types = _list_types(cls.model_fields[info.field_name].annotation)
            if {int, float} & types and not {bool, Any} & types:
                raise ValueError(f"This must be a number. Received: {str(found).lower()}. Write {int(found)} for one")
        return value


def _list_types(annotation: Any) -> set[Any]:
    """Return the types of an annotation, those inside unions, tuples and the like included."""
    inner = [part for part in get_args(annotation) if not isinstance(part, str)]
    return {annotation}.union(*map(_list_types, inner)) if inner else {annotation}

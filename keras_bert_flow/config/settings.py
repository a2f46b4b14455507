"""Base class of all settings, and types that several sections use."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from keras_bert_flow.local_paths import check_local

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

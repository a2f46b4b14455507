"""Say what all settings have in common."""

from pydantic import BaseModel, ConfigDict

BUILTIN = "builtin"


class Settings(BaseModel):
    """Frozen settings that refuse unknown keys."""

    # YAML reads `text: 3` as a number; a column may be named so
    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), validate_default=True, coerce_numbers_to_str=True
    )

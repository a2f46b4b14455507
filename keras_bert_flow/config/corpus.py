"""Section `corpus`."""

from typing import Literal

from pydantic import Field

from keras_bert_flow.config.settings import BUILTIN, Settings


class CorpusConfig(Settings):
    """Where the text is and how its lines are read."""

    input: tuple[str, ...] = Field(
        (BUILTIN,),
        min_length=1,
        description="Files, folders or globs of .txt, .jsonl (.gz, .bz2, .xz, .zst) and .parquet, local or at gs:// "
        "and s3://; or `builtin`, the docstrings of the installed packages.",
    )
    text_field: str = Field(
        "text", description="Field of a JSON line, or column of a Parquet file, that contains the text."
    )
    lines: Literal["paragraphs", "sentences"] = Field(
        "paragraphs", description="Whether a line is a paragraph, to be split into sentences, or one sentence."
    )
    max_line_bytes: int = Field(
        1_000_000, ge=1, description="Maximum length of a line, in bytes; longer lines are rejected and counted."
    )
    strict: bool = Field(False, description="Refuse the corpus at the first line that is not UTF-8 or is too long.")
    skip_bad_inputs: bool = Field(
        False, description="Skip, count and name files that cannot be opened or read to their end."
    )
    max_rejected_share: float = Field(
        0.01,
        ge=0,
        le=1,
        description="Maximum fraction of the corpus' bytes that may be rejected, including skipped files.",
    )

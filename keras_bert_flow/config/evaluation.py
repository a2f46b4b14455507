"""Section `evaluation`."""

from pydantic import Field

from keras_bert_flow.config.limits import MOST_EXAMPLES
from keras_bert_flow.config.settings import Settings


class EvaluationConfig(Settings):
    """What the report measures in addition to the task."""

    minimal_pairs: str | None = Field(
        None,
        description="File of minimal pairs in the format of BLiMP, .jsonl, also .gz, .bz2, .xz and .zst, on which the "
        "pre-trained model is scored. Default: none.",
    )
    minimal_pairs_limit: int | None = Field(
        None, ge=1, le=MOST_EXAMPLES, description="Maximum number of pairs per phenomenon, from the start of the file."
    )

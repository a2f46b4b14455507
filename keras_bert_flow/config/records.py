"""Section `records`."""

from typing import Literal

from pydantic import Field

from keras_bert_flow.config.limits import MOST_SHARDS
from keras_bert_flow.config.settings import Settings


class RecordsConfig(Settings):
    """How documents become masked instances (Devlin et al. 2019, section 3.1 and appendix A.2)."""

    objective: Literal["mlm_nsp", "mlm", "mlm_sop", "rtd"] = Field(
        "mlm_nsp",
        description="Masked tokens with next-sentence pairs (BERT), alone in full sequences (RoBERTa), or with "
        "sentence order (ALBERT); replaced tokens to be told (ELECTRA).",
    )
    sequence_length: int = Field(128, ge=8, description="Tokens per instance, including [CLS] and [SEP].")
    max_predictions: int = Field(20, ge=1, description="Maximum number of masked tokens per instance.")
    masked_fraction: float = Field(0.15, gt=0, lt=1, description="Fraction of an instance's tokens to mask.")
    mask_unit: Literal["token", "word", "span"] = Field(
        "token", description="Unit that is masked as a whole: a token, a word, or a span of 1 to 10 words (SpanBERT)."
    )
    short_fraction: float = Field(0.1, ge=0, le=1, description="Fraction of passes with a random shorter length.")
    duplication: int = Field(
        5, ge=1, description="Number of times each document is used, with different pairs and masks."
    )
    held_out_fraction: float = Field(0.02, ge=0, lt=1, description="Fraction of documents held out for evaluation.")
    shards: int | None = Field(
        None,
        ge=1,
        le=MOST_SHARDS,
        description="Number of files of training records. Default: at least 4, enough to keep each file below 256 MB.",
    )

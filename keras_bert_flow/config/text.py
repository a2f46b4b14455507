"""Sections `corpus`, `vocabulary` and `records`: the text, and what is made of it."""

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from keras_bert_flow.config.limits import BUILTIN, MOST_PIECES, MOST_SHARDS, LocalPath, Settings
from keras_bert_flow.text.masking import SPAN
from keras_bert_flow.text.objectives import DEFAULT, OBJECTIVES
from keras_bert_flow.text.objectives.objective import check_mask_unit, check_packing, find_objective
from keras_bert_flow.text.vocabulary import BPE, FEWEST_BYTE_PIECES, WORD_PIECE


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


# Section `vocabulary`.

OF_WORD_PIECE = ("min_character_count", "max_cjk_characters", "long_words")  # settings that BPE has no use for


class VocabularyConfig(Settings):
    """How the vocabulary is learned."""

    kind: Literal["wordpiece", "bpe"] = Field(
        WORD_PIECE,
        description="WordPiece, in a vocab.txt, as of BERT; or byte-level BPE, in a tokenizer.json, as of ModernBERT "
        "and RoBERTa: it keeps case unless `cased` is false, and makes nothing [UNK].",
    )
    size: int = Field(30522, ge=6, le=MOST_PIECES, description="Vocabulary size, including the five special tokens.")
    cased: bool = Field(False, description="Keep case and accents.")
    min_character_count: int = Field(
        1, ge=1, description="Minimum number of occurrences of a character; rarer characters become [UNK]."
    )
    max_cjk_characters: int = Field(
        8000,
        ge=0,
        description="Number of Han characters that have a piece in any case, the most frequent ones. The others have "
        "the pieces that nothing else needs, or become [UNK].",
    )
    long_words: Literal["unknown", "characters"] = Field(
        "unknown",
        description="Words of over 200 characters, as of text without spaces: unknown, one [UNK] as in BERT, or "
        "characters, which are cut after every 200. The vocabulary is then a tokenizer.json.",
    )
    file: LocalPath | None = Field(
        None, description="Use this vocab.txt or tokenizer.json instead of learning a vocabulary."
    )

    @model_validator(mode="before")
    @classmethod
    def _keep_case(cls, values: Any) -> Any:
        is_bpe = isinstance(values, dict) and values.get("kind") == BPE
        return {"cased": True} | values if is_bpe else values

    @model_validator(mode="after")
    def _check_kind(self) -> Self:
        fields = type(self).model_fields
        changed = [name for name in OF_WORD_PIECE if getattr(self, name) != fields[name].default]
        if self.kind == BPE and changed:
            raise ValueError(
                f"`{changed[0]}` must go with `kind: wordpiece`: byte-level BPE makes nothing [UNK]. Received: "
                f"kind=bpe, {changed[0]}={getattr(self, changed[0])}. Leave it out."
            )
        if self.kind == BPE and self.size < FEWEST_BYTE_PIECES:
            raise ValueError(
                f"`size` must be at least {FEWEST_BYTE_PIECES} with `kind: bpe`: five special tokens and 256 bytes. "
                f"Received: size={self.size}. Raise it."
            )
        return self


# Section `records`.


class RecordsConfig(Settings):
    """How documents become masked instances (Devlin et al. 2019, section 3.1 and appendix A.2)."""

    objective: Literal[*OBJECTIVES] = Field(  # type: ignore[valid-type]  # a checker does not see what it holds
        DEFAULT,
        description="Masked tokens with next-sentence pairs (BERT), alone in full sequences (RoBERTa), with sentence "
        "order (ALBERT), or with span boundaries (SpanBERT); replaced tokens to be told (ELECTRA).",
    )
    sequence_length: int = Field(128, ge=8, description="Tokens per instance, including [CLS] and [SEP].")
    max_predictions: int = Field(20, ge=1, description="Maximum number of masked tokens per instance.")
    masked_fraction: float = Field(0.15, gt=0, lt=1, description="Fraction of an instance's tokens to mask.")
    mask_unit: Literal["token", "word", "span"] = Field(
        "token",
        description="Unit that is masked as a whole: a token, a word, or a span of 1 to 10 words (SpanBERT). With the "
        "objective `mlm_sbo` it is `span`, and neighbouring spans are merged.",
    )
    packing: bool = Field(
        False,
        description="Fill instances with whole documents, each with its own positions and attention, instead of "
        "continuous text; with the objective `mlm` or `rtd`.",
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

    @model_validator(mode="before")
    @classmethod
    def _choose_mask_unit(cls, values: Any) -> Any:
        name = values.get("objective") if isinstance(values, dict) else None
        if name not in (*OBJECTIVES,) or "mask_unit" in values or not find_objective(name).has_spans:
            return values
        return values | {"mask_unit": SPAN}

    @model_validator(mode="after")
    def _check_mask_unit(self) -> Self:
        check_mask_unit(self.objective, self.mask_unit)
        if self.packing:
            check_packing(self.objective)
        return self

"""Section `vocabulary`."""

from typing import Literal

from pydantic import Field

from keras_bert_flow.config.limits import MOST_PIECES
from keras_bert_flow.config.settings import LocalPath, Settings


class VocabularyConfig(Settings):
    """How the WordPiece vocabulary is learned."""

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

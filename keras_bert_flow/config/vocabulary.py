"""Section `vocabulary`."""

from pydantic import Field

from keras_bert_flow.config.limits import MOST_PIECES
from keras_bert_flow.config.settings import LocalPath, Settings


class VocabularyConfig(Settings):
    """How the WordPiece vocabulary is learnt."""

    size: int = Field(
        30522, ge=6, le=MOST_PIECES, description="Pieces in the vocabulary, the five special ones included."
    )
    cased: bool = Field(False, description="Keep case and accents.")
    min_character_count: int = Field(
        1, ge=1, description="Characters seen less often are left out and become [UNK], occurrences."
    )
    max_cjk_characters: int = Field(
        8000, ge=0, description="Han characters to keep, the most frequent ones; the others become [UNK]."
    )
    file: LocalPath | None = Field(None, description="Use this vocab.txt, or tokenizer.json, and learn none.")

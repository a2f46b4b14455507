"""Learn the tokenizer of a corpus: the words that are counted, and what becomes of their counts, for each kind."""

from collections.abc import Mapping
from typing import Any, Protocol

from keras_bert_flow.text.learner import learn_vocabulary
from keras_bert_flow.text.tokenizers.bpe import BytePieces, learn_bpe
from keras_bert_flow.text.tokenizers.files import cut_long_words, make_cutting_tokenizer
from keras_bert_flow.text.tokenizers.normalization import clean_text, normalize_text
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer
from keras_bert_flow.text.tokenizers.wordpiece import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import BPE

CUT = "characters"  # of `vocabulary.long_words`


class Words(Protocol):
    """How text is divided into the words that are counted: at spaces, and then each part by itself.

    Attributes:
        strips_accents: whether words lose accents.
    """

    strips_accents: bool

    def split(self, text: str) -> list[str]:
        """Return the parts of a text, whose words do not depend on each other."""

    def __call__(self, part: str) -> list[str]:
        """Return the words of a part."""


class WordPieceWords:
    """The words of WordPiece.

    Args:
        cased: whether they keep case.
        cuts_long_words: whether long words are divided; see `cut_long_words`.
    """

    def __init__(self, cased: bool, cuts_long_words: bool = False):
        self.strips_accents = not cased
        self._cased, self._cuts_long_words = cased, cuts_long_words

    def split(self, text: str) -> list[str]:
        return clean_text(text).split()

    def __call__(self, part: str) -> list[str]:
        words = normalize_text(part, self._cased).split()
        return cut_long_words(words) if self._cuts_long_words else words


def choose_words(vocabulary: Any) -> Words:
    """Return how text is divided for a vocabulary.

    Args:
        vocabulary: the section `vocabulary` of a configuration.
    """
    if vocabulary.kind == BPE:
        return BytePieces(vocabulary.cased)
    return WordPieceWords(vocabulary.cased, vocabulary.long_words == CUT)


def learn_tokenizer(word_counts: Mapping[str, int], vocabulary: Any) -> Tokenizer:
    """Learn the tokenizer of counted words.

    Args:
        word_counts: count of each word, as `choose_words` divides the text.
        vocabulary: the section `vocabulary` of a configuration.
    Raises:
        ValueError: `vocabulary.size` is too small; see `learn_vocabulary` and `learn_bpe`.
    """
    size, cased = vocabulary.size, vocabulary.cased
    if vocabulary.kind == BPE:
        return learn_bpe(word_counts, size, cased)
    pieces = learn_vocabulary(word_counts, size, vocabulary.min_character_count, vocabulary.max_cjk_characters)
    return (make_cutting_tokenizer if vocabulary.long_words == CUT else WordPieceTokenizer)(pieces, cased)

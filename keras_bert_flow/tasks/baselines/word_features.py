"""Sparse TF-IDF features of texts and text pairs, for linear models."""

from collections.abc import Sequence

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.feature_extraction.text import TfidfVectorizer

MOST_FEATURES = 100_000  # columns: the most frequent words and bigrams, a quarter as many for pairs

# A text, and the second text of a pair; both as words joined by spaces.
Words = tuple[str, str | None]


class WordFeatures(TransformerMixin, BaseEstimator):
    """TF-IDF vectors of word n-grams, with sublinear term frequency and unit length.

    A pair has the vectors a and b of both texts, `|a - b|`, for what only one of them contains, and `a * b`, for what
    both contain. A linear model cannot compute from a and b alone whether a word of one text is in the other. Three
    dense columns follow: the cosine of a and b, and the share of each vector's weight on features of the other, one of
    which is high if a text follows from a longer one.

    Args:
        longest: most words of an n-gram.
        most_features: most words and n-grams, the most frequent ones; a quarter as many for pairs.
    """

    def __init__(self, longest: int = 1, most_features: int = MOST_FEATURES):
        self.longest = longest
        self.most_features = most_features

    def fit(self, texts: Sequence[Words], y=None) -> "WordFeatures":
        """Learn the vocabulary; raises ValueError if no text has a word."""
        is_pair = bool(texts) and texts[0][1] is not None
        self.vectorizer_ = TfidfVectorizer(
            tokenizer=str.split,
            token_pattern=None,
            lowercase=False,
            sublinear_tf=True,
            ngram_range=(1, self.longest),
            max_features=self.most_features // (4 if is_pair else 1),
        )
        self.vectorizer_.fit(text for pair in texts for text in pair if text is not None)
        return self

    def transform(self, texts: Sequence[Words]) -> sparse.csr_matrix:
        """Return one row per text or pair, float64."""
        first = self.vectorizer_.transform([text for text, _ in texts])
        if not texts or texts[0][1] is None:
            return first
        second = self.vectorizer_.transform([text for _, text in texts])
        both = first.multiply(second).tocsr()
        dense = [both.sum(axis=1), _shared_weight(first, second), _shared_weight(second, first)]
        columns = np.hstack([np.asarray(column).reshape(-1, 1) for column in dense])
        return sparse.hstack([first, second, abs(first - second), both, columns], format="csr")


def _shared_weight(one: sparse.csr_matrix, other: sparse.csr_matrix) -> np.ndarray:
    """Return the share of each row's weight on features that the other's row has; 0.0 for an empty row."""
    total = np.asarray(one.sum(axis=1)).ravel()
    shared = np.asarray(one.multiply(other.sign()).sum(axis=1)).ravel()
    return np.divide(shared, total, out=np.zeros_like(total), where=total > 0)

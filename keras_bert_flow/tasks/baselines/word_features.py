"""Sparse TF-IDF features of texts and of pairs of texts, for linear models."""

from collections.abc import Sequence

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.feature_extraction.text import TfidfVectorizer

MOST_FEATURES = 100_000  # of a row: the most frequent words and bigrams, a quarter of that number where rows are pairs

# A text, and its second text where the task has pairs; both as words with a space between them.
Words = tuple[str, str | None]


class WordFeatures(TransformerMixin, BaseEstimator):
    """TF-IDF vectors of word n-grams, with sublinear term frequency and length 1.

    A pair has the vectors a and b of both texts, `|a - b|`, what only one of them says, and the product `a * b`, what
    both say. None of these alone tells whether a word of the one is in the other, which a linear model cannot compute
    from a and b. Three dense columns follow: the cosine of a and b, and the shares of the weight of each that falls on
    features of the other, of which one is high where a text follows from a longer one.

    Args:
        longest: words of an n-gram, at most.
    """

    def __init__(self, longest: int = 1):
        self.longest = longest

    def fit(self, texts: Sequence[Words], y=None) -> "WordFeatures":
        """Learn the vocabulary; raises ValueError where no text has a word."""
        is_pair = bool(texts) and texts[0][1] is not None
        self.vectorizer_ = TfidfVectorizer(
            tokenizer=str.split,
            token_pattern=None,
            lowercase=False,
            sublinear_tf=True,
            ngram_range=(1, self.longest),
            max_features=MOST_FEATURES // (4 if is_pair else 1),
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
    """Return the share of each row's weight that falls on features of the other's; 0.0 of an empty row."""
    total = np.asarray(one.sum(axis=1)).ravel()
    shared = np.asarray(one.multiply(other.sign()).sum(axis=1)).ravel()
    return np.divide(shared, total, out=np.zeros_like(total), where=total > 0)

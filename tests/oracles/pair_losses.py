"""The losses of pairs as `sentence_transformers` writes them down, in PyTorch and float64, a pair at a time.

Source: sentence-transformers 5.2: losses/CosineSimilarityLoss.py, losses/MultipleNegativesRankingLoss.py,
util/similarity.py; and of the batches that its loss is meant for, sampler.py, `NoDuplicatesBatchSampler`.
"""

import numpy as np
import torch
import torch.nn.functional as F


def cosines(vectors) -> np.ndarray:
    """Return the cosine of each pair of vectors, (pairs, 2, hidden)."""
    first, second = torch.as_tensor(np.asarray(vectors, np.float64)).unbind(1)
    return F.cosine_similarity(first, second).numpy()


def cosine_loss(vectors, labels, weights=None) -> float:
    errors = (cosines(vectors) - np.asarray(labels, np.float64)) ** 2
    return float(np.average(errors, weights=weights))


def contrastive_loss(vectors, numbers, weights=None, scale: float = 20.0) -> float:
    """Return the mean loss of the pairs that have weight, each among the pairs that it shares no text with."""
    vectors = torch.as_tensor(np.asarray(vectors, np.float64))
    weights = np.ones(len(vectors)) if weights is None else np.asarray(weights, np.float64)
    losses = []
    for row, _ in enumerate(vectors):
        others = [
            other
            for other, _ in enumerate(vectors)
            if other != row and weights[other] > 0 and not set(numbers[other]) & set(numbers[row])
        ]
        seconds = F.normalize(vectors[[row, *others], 1], p=2, dim=1)
        scores = F.normalize(vectors[row, :1], p=2, dim=1) @ seconds.T * scale
        losses.append(F.cross_entropy(scores, torch.tensor([0])).item())
    return float(np.average(losses, weights=weights))

"""Score sentences by pseudo-log-likelihood under a masked language model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import final

import numpy as np

from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.data.tasks import BATCH_POSITIONS, choose_few_widths, predict_batches
from keras_bert_flow.models.pretraining.masked_lm import LOG_PROBABILITIES, MaskedLM, make_token_scorer
from keras_bert_flow.prediction.lines import check_batch_positions

_FIRST = 1  # position of the first scored token, after [CLS]


@dataclass(frozen=True)
class MaskedCopies:
    """Sentences, each once per scored token.

    Attributes:
        token_ids: int32, (length,) each. The sentences, unmasked, with [CLS] and [SEP].
        sentences, positions: int, (copies,). The sentence of each copy, and the position that is masked in it.
    """

    token_ids: Sequence[np.ndarray]
    sentences: np.ndarray
    positions: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each copy, int, (copies,)."""
        return np.array([len(ids) for ids in self.token_ids], np.int64)[self.sentences]


@final
class SentenceScorer:
    """A masked language model that scores sentences.

    The pseudo-log-likelihood of a sentence is the sum of log p(token | the sentence with that token masked) over its
    tokens, without [CLS] and [SEP]. A token that is [UNK] is scored as any other.

    Args:
        folder: a model directory with a masked-token head.
        batch_positions: rows times width of a batch.
    Raises:
        FileNotFoundError: the folder or a file of it is missing.
        ValueError: a file is damaged, or the model has no such head.
    Source: Salazar et al. 2020, "Masked Language Model Scoring", equation 1; arXiv:1910.14659.
    """

    def __init__(self, folder: str | Path, batch_positions: int = BATCH_POSITIONS):
        check_batch_positions(batch_positions)
        masked_lm = MaskedLM.from_preset(folder)
        self.model = make_token_scorer(masked_lm)
        self.max_positions = masked_lm.backbone.max_positions
        self.mask_id = read_tokenizer(Path(folder)).mask_id
        self.batch_positions = batch_positions

    def score(self, token_ids: Sequence[np.ndarray], follow: Callable = iter) -> np.ndarray:
        """Return the pseudo-log-likelihood of each sentence, float64, (sentences,), in nats.

        Args:
            token_ids: int32, (length,) each, with [CLS] and [SEP]; at most `max_positions` long.
            follow: takes the batches of masked copies and yields them again, to show progress.
        """
        if not token_ids:
            return np.zeros(0)
        copies = copy_with_masks(token_ids)
        choose = partial(choose_few_widths, batch_positions=self.batch_positions, longest=self.max_positions)
        found = np.zeros(len(copies.positions))
        for rows, outputs in predict_batches(
            self.model, copies, choose, self.batch_positions, follow, self._make_inputs
        ):
            found[rows] = outputs[LOG_PROBABILITIES][:, 0]
        return np.bincount(copies.sentences, weights=found, minlength=len(token_ids))

    def _make_inputs(self, copies: MaskedCopies, rows: np.ndarray, width: int) -> dict[str, np.ndarray]:
        token_ids, segment_ids, padding_mask = np.zeros((3, len(rows), width), np.int32)
        for place, sentence in enumerate(copies.sentences[rows]):
            ids = copies.token_ids[sentence]
            token_ids[place, : len(ids)] = ids
            padding_mask[place, : len(ids)] = 1
        masked = np.arange(len(rows)), copies.positions[rows]
        target_ids = token_ids[masked]
        token_ids[masked] = self.mask_id
        return {
            "token_ids": token_ids,
            "segment_ids": segment_ids,
            "padding_mask": padding_mask,
            "mask_positions": copies.positions[rows, None].astype(np.int32),
            "target_ids": target_ids[:, None],
        }


def copy_with_masks(token_ids: Sequence[np.ndarray]) -> MaskedCopies:
    """Return a copy of each sentence for each of its tokens except [CLS] and [SEP], in the order of the sentences."""
    scored = np.array([len(ids) - 2 for ids in token_ids])
    sentences = np.repeat(np.arange(len(token_ids)), scored)
    starts = np.cumsum(scored) - scored
    return MaskedCopies(token_ids, sentences, _FIRST + np.arange(len(sentences)) - starts[sentences])

"""Masked language models: the most likely tokens at each [MASK] of a text, and scores of sentences."""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, final

import numpy as np
import scipy  # its submodules are loaded when they are used

from keras_bert_flow.conversion.directory import ModelDirectory
from keras_bert_flow.conversion.model_directory import load_pretrainer
from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.data.tasks import BATCH_POSITIONS, ChooseWidths, choose_few_widths, make_inputs, predict_batches
from keras_bert_flow.models.pretraining.masked_lm import LOG_PROBABILITIES, MaskedLM, make_token_scorer
from keras_bert_flow.prediction.base_predictor import BasePredictor
from keras_bert_flow.prediction.lines import check_batch_positions
from keras_bert_flow.tasks.core.task import Features, join_texts
from keras_bert_flow.tasks.core.texts import is_blank, take_texts
from keras_bert_flow.tasks.formats.rows import abridge
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer

Fill = dict[str, Any]
Choice = tuple[list[int], list[float]]  # token ids of a mask and their probabilities, most likely first
_FIRST = 1  # position of the first scored token, after [CLS]


@dataclass(frozen=True)
class MaskedText:
    """A text and its encoding.

    Attributes:
        token_ids: int32, (length,), with [CLS] and [SEP].
        positions: int, (masks,). Positions of the masks among them.
        full_length: number of tokens before truncation.
    """

    text: str
    token_ids: np.ndarray
    positions: np.ndarray
    full_length: int


@final
class MaskFiller(BasePredictor):
    """Fill-mask model: a masked language model with its tokenizer.

    The prediction for a text is a list for each of its masks, of the `top_k` most likely tokens: {"score", "token",
    "token_str", "sequence"}: the probability, the id, the piece, and the text with it. Each mask is filled separately:
    the others stay [MASK] in its sequence, as in the model's input.
    The names, tokens and scores are those of the fill-mask pipeline of `transformers`. There, a text with one mask
    gives a single list, not nested, and `sequence` is joined from tokens; here it is the text as written.

    Args:
        folder: a model directory with a masked-token head: what `kbf pretrain` publishes, `BertForMaskedLM` or
            `BertForPreTraining`.
        top_k: number of tokens for each mask.
        batch_positions: rows times width of a batch.
    Raises:
        FileNotFoundError: the folder or a file of it is missing.
        ValueError: a file is damaged, the model has no such head, or fewer than `top_k` tokens.
    """

    def __init__(self, folder: str | Path | ModelDirectory, top_k: int = 5, batch_positions: int = BATCH_POSITIONS):
        directory = ModelDirectory.of(folder)
        self.model, new_layers = load_pretrainer(MaskedLM, directory)
        if new_layers:
            raise ValueError(
                f"{directory.folder}: there is no masked-token head in it, which fills masks. "
                "Take what `kbf pretrain` made, a BertForMaskedLM or a BertForPreTraining."
            )
        super().__init__(self.model.backbone.max_positions, batch_positions)
        self.tokenizer = directory.tokenizer
        if not 1 <= top_k <= self.tokenizer.vocabulary_size:
            raise ValueError(
                f"`top_k` must be from 1 to the size of the vocabulary, {self.tokenizer.vocabulary_size}. "
                f"Received: top_k={top_k}."
            )
        self.top_k = top_k

    def make_example(self, item: Any) -> MaskedText:
        """Encode a text with [MASK] in it, or a blank text, whose prediction is an empty list.

        Raises:
            ValueError: the item is not such a text, or one of its masks is beyond the model's last position.
        """
        (text,) = take_texts(item, ("text",))
        mask = self.tokenizer.mask_token
        count = text.count(mask)
        if not count and not is_blank(text):
            raise ValueError(f"A text must hold {mask}. Received: {abridge([repr(text)])}. Write it where a word is.")
        # For the tokenizer itself, special pieces in texts are ordinary text.
        mask_ids = np.array([self.tokenizer.mask_id], dtype=np.int32)
        *before, last = text.split(mask)
        before = [words.rstrip() for words in before] if self.tokenizer.mask_lstrip else before
        parts = [ids for words in (*before, last) for ids in (mask_ids, self.tokenizer.encode(words))][1:]
        whole = join_texts(self.tokenizer, np.concatenate(parts), None, sys.maxsize)[0]
        is_cut = len(whole) > self.sequence_length
        token_ids = np.append(whole[: self.sequence_length - 1], whole[-1:]) if is_cut else whole
        positions = np.flatnonzero(token_ids == self.tokenizer.mask_id)
        if len(positions) < count:
            raise ValueError(
                f"Each {mask} must be among the first {self.sequence_length} tokens, [CLS] and [SEP] included. "
                f"Received: {count} of them, {len(positions)} there: {abridge([repr(text)])}. Shorten the text."
            )
        return MaskedText(text, token_ids, positions, len(whole))

    def answer(
        self, examples: Sequence[MaskedText], choose: ChooseWidths | None = None, follow: Callable = iter
    ) -> list[list[list[Fill]]]:
        if not examples:
            return []
        features = Features(
            token_ids=[example.token_ids for example in examples],
            first_lengths=np.array([len(example.token_ids) for example in examples], dtype=np.int32),
            examples=np.arange(len(examples), dtype=np.int32),
            details=[example.positions for example in examples],
            sequence_length=self.sequence_length,
            full_lengths=np.array([example.full_length for example in examples]),
        )
        self.cut_texts.add(features)
        batches = predict_batches(
            self.model, features, choose or self.choose_fixed, self.batch_positions, follow, make_masked_inputs
        )
        choices: list[list[Choice]] = [[]] * len(examples)
        for rows, found in batches:  # only the chosen tokens of each batch are kept
            for row, logits in zip(rows, found["mlm"], strict=True):
                choices[row] = [choose_tokens(of_mask, self.top_k) for of_mask in logits[: len(features.details[row])]]
        return [self._fill(example.text, found) for example, found in zip(examples, choices, strict=True)]

    def _fill(self, text: str, choices: Iterable[Choice]) -> list[list[Fill]]:
        tokenizer, parts = self.tokenizer, text.split(self.tokenizer.mask_token)
        return [
            [
                {"score": score, "token": token, "token_str": piece, "sequence": put(tokenizer, parts, place, piece)}
                for token, score, piece in zip(tokens, scores, map(tokenizer.pieces.__getitem__, tokens), strict=True)
            ]
            for place, (tokens, scores) in enumerate(choices)
        ]


def make_masked_inputs(features: Features, rows: np.ndarray, width: int) -> dict[str, np.ndarray]:
    """Return the inputs of some rows and their `mask_positions`, int32, (rows, masks).

    Logits are computed only at these: a batch of 64 rows of 64 tokens has 4,096 x 30,522 of them, 500 MB, of which the
    masks need a hundredth. The number of masks is a power of two, to have few shapes; padding is position 0.
    """
    most = max(1, *(len(features.details[row]) for row in rows))  # a blank text has no mask
    positions = np.zeros((len(rows), 1 << (most - 1).bit_length()), np.int32)
    for place, row in enumerate(rows):
        positions[place, : len(features.details[row])] = features.details[row]
    return make_inputs(features, rows, width) | {"mask_positions": positions}


def choose_tokens(logits: np.ndarray, top_k: int) -> Choice:
    """Return the ids of the `top_k` most likely tokens and their probabilities; ties go to lower ids.

    Args:
        logits: float32, (vocabulary,).
    """
    logits = logits.astype(np.float64)
    least = np.partition(logits, -top_k)[-top_k]
    likely = np.flatnonzero(logits >= least)
    chosen = likely[np.argsort(-logits[likely], kind="stable")][:top_k]
    return chosen.tolist(), np.exp(logits[chosen] - scipy.special.logsumexp(logits)).tolist()


def put(tokenizer: Tokenizer, parts: Sequence[str], place: int, piece: str) -> str:
    """Join the parts of a text with masks, except for a piece in one place; a continuation joins its word."""
    mask = tokenizer.mask_token
    return tokenizer.append(mask.join(parts[: place + 1]), piece) + mask.join(parts[place + 1 :])


# Scores of sentences by pseudo-log-likelihood.


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
        scored = np.array([len(ids) - 2 for ids in token_ids])  # without [CLS] and [SEP]
        sentences = np.repeat(np.arange(len(token_ids)), scored)
        starts = np.cumsum(scored) - scored
        copies = MaskedCopies(token_ids, sentences, _FIRST + np.arange(len(sentences)) - starts[sentences])
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

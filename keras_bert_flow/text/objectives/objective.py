"""Base class of pre-training objectives."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from keras_bert_flow.text.masking import MaskingRule
from keras_bert_flow.text.pool import TokenizedDocument
from keras_bert_flow.text.rows import TokenRows

ROWS = 1024  # made at once, about 1 MB a matrix; what is drawn depends on it
KINDS = ("loss", "accuracy")  # of the figures of an output
# (sentences, tokens) of a document → thousandths of an instance; integers add up to the same number in any order
Estimate = Callable[[int, int], int]
Features = Mapping[str, np.ndarray]
Batch = tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, np.ndarray]]  # x, y, sample weights


@dataclass(frozen=True)
class InstanceRule:
    """How instances are made.

    Attributes:
        objective: its name.
        sequence_length: most tokens of an instance.
        short_fraction: share of passes over a document that aim at a random shorter length; not for `mlm`.
        cls_id: id of [CLS].
        sep_id: id of [SEP].
        masking: how tokens are hidden.
    """

    objective: str
    sequence_length: int
    short_fraction: float
    cls_id: int
    sep_id: int
    masking: MaskingRule


@dataclass(frozen=True)
class SentenceLabel:
    """What is to be told of a pair of segments, yes or no.

    Attributes:
        task: what a two-way head learns from it, such as `next_sentence`; begins the names of its scores.
        meanings: of label 0, and of label 1.
        counter: the job's count of labels 1.
        shares: lowest and highest share of labels 1 that chance may stray from.
        usual: the share to expect, in words; may be empty.
        remedies: where there are too few labels 1, and too many; may be empty.
        is_drawn: by a coin toss for each pair whatever the text, so another share is an error.
    """

    task: str
    meanings: tuple[str, str]
    counter: str
    shares: tuple[float, float]
    usual: str = ""
    remedies: tuple[str, str] = ("", "")
    is_drawn: bool = False


class Objective(ABC):
    """What a model learns from text.

    Attributes:
        sentence_label: of an instance that is a pair of segments; None where it is one text.
        needed_documents: how many there must be to train on.
        needed: the same in words.
        least_sentences: of a document, or it makes no instance.
        most_padding: largest share of places that may be padding without a warning.
        is_divisible: an instance can be cut into shorter ones.
        families: of encoders that are trained on it; empty where all are.
        has_generator: a narrower encoder fills the gaps.
        has_words_head: whether a bag of words can be predicted beside.
        scores: output of the model → what its scores on held-out records are called.
        main_score: that of `scores` whose loss tells the best model.
    """

    sentence_label: SentenceLabel | None = None
    needed_documents: int = 1
    needed: str
    least_sentences: int = 1
    most_padding: float
    is_divisible: bool = False
    families: tuple[str, ...] = ()
    has_generator: bool = False
    has_words_head: bool = True
    scores: Mapping[str, str] = {"mlm": "masked_lm"}
    main_score: str = "masked_lm"

    @property
    def has_pairs(self) -> bool:
        return self.sentence_label is not None

    def draw(self, features: Features, *key: str | int) -> Features:
        """Return the features of an instance with what is to be drawn beside its masks, by a key; nothing here."""
        return features

    def make_batch(self, features: Features) -> Batch:
        """Rename the features of a batch to the model's inputs, labels and sample weights.

        Shapes: token_ids, segment_ids, padding_mask (batch, length); mask_positions, `mlm` labels and weights
        (batch, masks_per_sequence).
        """
        x = {
            "token_ids": features["input_ids"].astype("int32"),
            "segment_ids": features["segment_ids"].astype("int32"),
            "padding_mask": features["input_mask"].astype("int32"),
            "mask_positions": features["masked_lm_positions"].astype("int32"),
        }
        return x, {"mlm": features["masked_lm_ids"].astype("int32")}, {"mlm": features["masked_lm_weights"]}

    def name_parts(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Call the figures of the model's outputs in a line of the log what its scores are called: `nsp_loss` becomes
        `sentence_order_loss` where that is what is learnt.
        """
        names = {f"{output}_{kind}": f"{name}_{kind}" for output, name in self.scores.items() for kind in KINDS}
        return {names.get(name, name): value for name, value in line.items()}

    def find_further_scores(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return scores on held-out records that are of no output alone, by the sums of `score_pretraining`."""
        return {}

    @abstractmethod
    def make_rows(
        self, documents: Sequence[TokenizedDocument], copies: int, rule: InstanceRule, seed: int
    ) -> Iterator[TokenRows]:
        """Make the instances of a pool before masking, up to ROWS at a time.

        Args: see `instances.build_instances`.
        """

    @abstractmethod
    def estimate_instances(self, sequence_length: int, short_fraction: float) -> Estimate:
        """Return what maps the size of a document to an upper estimate of its instances in one pass.

        Args:
            sequence_length: most tokens of an instance.
            short_fraction: share of passes that aim at a random shorter length.
        """

"""Base class of pre-training objectives, their lookup by name, and building instances with them."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from keras_bert_flow.text.masking import MERGED_SPAN, SPAN, MaskedRows, MaskingRule, mask_rows
from keras_bert_flow.text.objectives import OBJECTIVES
from keras_bert_flow.text.rows import TokenizedDocument, TokenRows, keyed_generator
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer

ROWS = 1024  # made at once, about 1 MB per matrix; what is drawn depends on it
MOST_MISTAKEN = 0.01  # of the labels 1, without a remark
NEAR_COPIES = "Remove near copies from the corpus: `kbf records` drops only equal documents."
KINDS = ("loss", "accuracy")  # metrics of an output
# (sentences, tokens) of a document → thousandths of an instance; integers have the same sum in any order
Estimate = Callable[[int, int], int]
Features = Mapping[str, np.ndarray]
Batch = tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, np.ndarray]]  # x, y, sample weights


@dataclass(frozen=True)
class InstanceRule:
    """How instances are made.

    Attributes:
        objective: name of the objective.
        sequence_length: most tokens of an instance.
        short_fraction: share of passes over a document that aim at a random shorter length; not for `mlm`.
        cls_id: id of [CLS].
        sep_id: id of [SEP].
        masking: how tokens are masked.
        packing: fill each instance with whole texts; for objectives with `is_packable`.
    """

    objective: str
    sequence_length: int
    short_fraction: float
    cls_id: int
    sep_id: int
    masking: MaskingRule
    packing: bool = False


@dataclass(frozen=True)
class SentenceLabel:
    """The binary label of a pair of segments.

    Attributes:
        task: name of the task, such as `next_sentence`; prefix of the names of its scores.
        meanings: meanings of label 0 and of label 1.
        counter: name of the job's count of labels 1.
        shares: lowest and highest expected share of labels 1, chance aside.
        usual: the expected share, in words; may be empty.
        remedies: for too few labels 1, and for too many; may be empty.
        is_drawn: the label is drawn by a coin toss for each pair whatever the text, so another share is an error.
        mistaken: name of the job's count of labels 1 that the text contradicts; empty if they are not counted.
    """

    task: str
    meanings: tuple[str, str]
    counter: str
    shares: tuple[float, float]
    usual: str = ""
    remedies: tuple[str, str] = ("", "")
    is_drawn: bool = False
    mistaken: str = ""


class Objective(ABC):
    """Base class of pre-training objectives.

    Attributes:
        sentence_label: label of an instance that is a pair of segments; None if it is one text.
        needed_documents: least number of documents to train on.
        needed: the same in words.
        least_sentences: least sentences of a document that makes an instance.
        most_padding: largest share of padding without a warning.
        is_divisible: an instance can be split into shorter ones.
        is_packable: an instance can hold several texts, each with its own positions and attention.
        families: families of encoders that are trained on it; empty if all are.
        has_generator: a narrower encoder fills the masks.
        has_words_head: whether a bag of words can be predicted in addition.
        has_spans: masks are merged spans, whose numbers are in the records, and a head predicts them from their
            boundaries.
        scores: output of the model → name of its scores on held-out records.
        main_score: the one of `scores` whose loss selects the best model.
        first_step: number of steps before the first that learns masked tokens.
    """

    sentence_label: SentenceLabel | None = None
    needed_documents: int = 1
    needed: str
    least_sentences: int = 1
    most_padding: float
    is_divisible: bool = False
    is_packable: bool = False
    families: tuple[str, ...] = ()
    has_generator: bool = False
    has_words_head: bool = True
    has_spans: bool = False
    scores: Mapping[str, str] = {"mlm": "masked_lm"}
    main_score: str = "masked_lm"
    first_step: int = 0

    @property
    def has_pairs(self) -> bool:
        return self.sentence_label is not None

    def find_masking(self, rule: MaskingRule) -> MaskingRule:
        """Return the masking rule of the objective, given that of the settings."""
        return replace(rule, unit=MERGED_SPAN) if self.has_spans else rule

    def draw(self, features: Features, *key: str | int) -> Features:
        """Return the features of an instance, with random numbers added that are drawn by a key; by default none."""
        return features

    def make_batch(self, features: Features) -> Batch:
        """Convert the features of a batch to the model's inputs, labels and sample weights.

        Shapes: token_ids, segment_ids, padding_mask (batch, length); mask_positions, `mlm` labels and weights (batch,
        masks_per_sequence).
        """
        x = {
            "token_ids": features["input_ids"].astype("int32"),
            "segment_ids": features["segment_ids"].astype("int32"),
            "padding_mask": features["input_mask"].astype("int32"),
            "mask_positions": features["masked_lm_positions"].astype("int32"),
        }
        return x, {"mlm": features["masked_lm_ids"].astype("int32")}, {"mlm": features["masked_lm_weights"]}

    def weigh_step(self, batch: Batch, step: int) -> Batch:
        """Return a batch with the sample weights of a step; by default they are the same in each."""
        return batch

    def name_parts(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """Rename the metrics of outputs in a log line to the names of their scores.

        For example, `nsp_loss` becomes `sentence_order_loss` if that is what is learnt.
        """
        names = {f"{output}_{kind}": f"{name}_{kind}" for output, name in self.scores.items() for kind in KINDS}
        return {names.get(name, name): value for name, value in line.items()}

    def find_further_scores(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return scores on held-out records that combine outputs, from the sums of `score_pretraining`."""
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
        """Return a function of the size of a document that estimates its instances in one pass, from above.

        Args:
            sequence_length: most tokens of an instance.
            short_fraction: share of passes that aim at a random shorter length.
        """


def describe_mistaken(objective: Objective, counters: Mapping[str, int]) -> list[str]:
    """Return a sentence on labels that the text contradicts, if these are more than `MOST_MISTAKEN`."""
    label = objective.sentence_label
    if label is None or (share := mistaken_share(label, counters)) is None or share <= MOST_MISTAKEN:
        return []
    return [
        f"{100 * share:.2f} % of the pairs labelled {label.meanings[1]!r} are of a B that could follow A as well, from "
        f"a near copy of the document. {NEAR_COPIES}"
    ]


def mistaken_share(label: SentenceLabel, counters: Mapping[str, int]) -> float | None:
    """Return the share of the labels 1 that the text contradicts; None if a job did not count them."""
    if not label.mistaken or label.mistaken not in counters:
        return None
    return counters[label.mistaken] / max(1, counters.get(label.counter, 0))


def check_mask_unit(name: str, mask_unit: str) -> None:
    """Raise ValueError unless an objective can be trained on masks of a unit."""
    if find_objective(name).has_spans and mask_unit != SPAN:
        raise ValueError(
            f"`records.mask_unit` must be {SPAN} with the objective {name}. Received: {mask_unit}. Leave it out."
        )


def check_packing(name: str) -> None:
    """Raise ValueError unless several texts can share an instance of an objective."""
    if not find_objective(name).is_packable:
        raise ValueError(
            "`records.packing` must go with an objective of one text, of which masked tokens alone are predicted: mlm "
            f"or rtd. Received: {name}. Leave out the packing."
        )


def check_joining(name: str, tokenizer: Tokenizer) -> None:
    """Raise ValueError unless a tokenizer joins two texts as the records of an objective do, with one [SEP] between."""
    if find_objective(name).has_pairs and tokenizer.separators != 1:
        raise ValueError(
            f"Records of pairs must have one separator between two texts. Received: objective={name}, a tokenizer with "
            f"{tokenizer.separators}. Use the objective mlm."
        )


@cache
def find_objective(name: str) -> Objective:
    """Return an objective by its name, one of `OBJECTIVES`.

    Raises:
        ValueError: there is no such objective.
    """
    return OBJECTIVES.find(name)()


# Build masked pre-training instances from a pool of documents.


@dataclass(frozen=True)
class Instances:
    """Masked instances; see `TokenRows` and `MaskedRows` for the matrices.

    Attributes:
        span_ids: int, (rows, max_predictions), those of `MaskedRows`; None if the objective has no spans.
    """

    rows: TokenRows
    masked: MaskedRows
    span_ids: np.ndarray | None = None


def build_instances(
    documents: Sequence[TokenizedDocument], copies: int, rule: InstanceRule, seed: int
) -> Iterator[Instances]:
    """Make the instances of a pool, ROWS at a time, as a pure function of the documents, their order and the arguments.

    Args:
        documents: all different.
        copies: times each document is used, with other pairs or cuts, and other masks.
        rule: how instances are made.
        seed: seed of every random choice.
    """
    rng = keyed_generator(seed, "masks", *(document.id for document in documents))
    objective = find_objective(rule.objective)
    masking = objective.find_masking(rule.masking)
    for rows in objective.make_rows(documents, copies, rule, seed):
        masked = mask_rows(rows.token_ids, rows.lengths, masking, rng)
        yield Instances(rows, masked, masked.span_ids if objective.has_spans else None)

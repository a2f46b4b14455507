"""Masked LM without pairs: full sequences, rows of whole texts, and splitting long records into shorter ones.

The documents of a pool are concatenated in the order of their digests (so at random), with [SEP] between two; copies
follow one another like laps of a circle. The text is cut where a sequence is full. So no token is lost or occurs twice
in a copy, each lap is cut at other positions, and only the last sequence of a pool has padding.

Source: Liu et al. 2019 (RoBERTa), section 4.2, FULL-SENTENCES; arXiv:1907.11692. One rule differs: there, a sequence
ends with the last sentence that fits whole, and half a sentence of room is left on average. Here, the sentence is cut
and continues in the next sequence.

With packing, a row holds whole documents instead, each with its own special tokens, positions and attention. Documents
that are longer than a row are cut into pieces, in each copy at other places.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from keras_bert_flow.text.objectives.objective import (
    ROWS,
    Batch,
    Estimate,
    Features,
    InstanceRule,
    Objective,
    find_objective,
)
from keras_bert_flow.text.rows import BestFit, TokenizedDocument, TokenRows, join_texts, pad_texts

SPECIAL_TOKENS = 2  # [CLS] text [SEP]
MAPS = ("feature_map", "attention_map")  # outputs of a `Distiller` with a loss for each layer
# Output of a `Distiller` that compares layers → name of its scores.
LAYER_SCORES = {"attention": "attention_score", "layers": "layer_state", **{name: name for name in MAPS}}
LAYERS_SCORE = "distillation"  # name of the weighted sum of these
HEAD = ("mask_positions", "mlm")  # input and output of a masked-LM head
PADDED_PER_DOCUMENT = 1 / 32  # one padded sequence per pool of about 64 documents, doubled to be safe


class MaskedTokens(Objective):
    """Masked LM alone, on fully packed sequences: RoBERTa."""

    needed = "text to train on"
    most_padding = 0.02
    is_divisible = True
    is_packable = True

    def make_rows(
        self, documents: Sequence[TokenizedDocument], copies: int, rule: InstanceRule, seed: int
    ) -> Iterator[TokenRows]:
        if rule.packing:
            yield from pack_copies(documents, copies, rule)
            return
        texts = pack_documents(
            [document.token_ids for document in documents], rule.sequence_length, copies, rule.cls_id, rule.sep_id
        )
        while batch := list(islice(texts, ROWS)):
            yield pad_texts(batch, rule.sequence_length)

    def estimate_instances(self, sequence_length: int, short_fraction: float) -> Estimate:
        room = sequence_length - SPECIAL_TOKENS
        # One more token for the [SEP] after a document
        return lambda sentences, tokens: int(1000 * ((tokens + 1) / room + PADDED_PER_DOCUMENT)) + 1


@dataclass(frozen=True)
class LayerTransfer:
    """The first steps of a distillation, in which a student learns the maps of its teacher's layers and nothing else.

    Attributes:
        num_layers: of the student and of its teacher.
        layer_steps: steps for each layer.
        is_joint: whether all layers learn at once, in as many steps together; else one after the other.
    Source: Sun et al. 2020 (MobileBERT), section 3.5: joint and progressive knowledge transfer; arXiv:2004.02984.
    """

    num_layers: int
    layer_steps: int
    is_joint: bool

    @classmethod
    def of(cls, settings: Any, num_layers: int) -> "LayerTransfer | None":
        """Return the transfer of a section `distillation`; None if its losses are learnt with the others."""
        if settings.transfer == "auxiliary":
            return None
        return cls(num_layers, settings.layer_transfer_steps, settings.transfer == "joint")

    @property
    def steps(self) -> int:
        """Number of steps of the whole transfer."""
        return self.num_layers * self.layer_steps

    @property
    def stage_steps(self) -> int:
        """Number of steps in which the same layers learn."""
        return self.steps if self.is_joint else self.layer_steps

    def find_turn(self, layer: int) -> tuple[int, int]:
        """Return the first step of a layer, from 0, and that after its last."""
        start = 0 if self.is_joint else layer * self.layer_steps
        return start, start + self.stage_steps

    def find_weights(self, step: int) -> np.ndarray:
        """Return the weight of each layer in a step, float32, (layers,): 1 in its turn, else 0."""
        turns = np.array([self.find_turn(layer) for layer in range(self.num_layers)])
        return ((turns[:, 0] <= step) & (step < turns[:, 1])).astype("float32")


@dataclass(frozen=True)
class Distillation(MaskedTokens):
    """Masked tokens that a teacher model predicts as well: batches for a student, from records of any objective.

    Only the masked tokens of the records are used. Outputs of the model other than `mlm` are losses that do not depend
    on labels, which are 0.

    Attributes:
        has_soft_targets, has_hidden_states: whether the model has the outputs `soft` and `hidden`.
        attention_score_weight, layer_state_weight: of the outputs `attention` and `layers`; 0: the model has none.
        has_head: whether the model has the output `mlm`. Else the held-out score is the weighted sum of the losses.
        feature_map_weight, attention_map_weight: of the outputs of these names, with a loss for each layer; 0: none.
        num_layers: of the student.
        transfer: steps that learn these two alone; None: they are learnt with the others in all steps.
    Source: Sanh et al. 2019 (DistilBERT), section 3; arXiv:1910.01108. Jiao et al. 2020 (TinyBERT), section 3.1;
    arXiv:1909.10351. Sun et al. 2020 (MobileBERT), section 3.4; arXiv:2004.02984.
    """

    has_words_head = False

    has_soft_targets: bool = True
    has_hidden_states: bool = True
    attention_score_weight: float = 0.0
    layer_state_weight: float = 0.0
    has_head: bool = True
    feature_map_weight: float = 0.0
    attention_map_weight: float = 0.0
    num_layers: int = 0
    transfer: LayerTransfer | None = None

    @classmethod
    def of(cls, settings: Any, num_layers: int = 0) -> "Distillation":
        """Return the objective of a section `distillation`.

        Args:
            num_layers: of the student. Default: unknown, where no batches are made.
        """
        return cls(
            settings.soft_target_weight > 0,
            settings.hidden_state_weight > 0,
            settings.attention_score_weight,
            settings.layer_state_weight,
            settings.has_head,
            settings.feature_map_weight,
            settings.attention_map_weight,
            num_layers,
            LayerTransfer.of(settings, num_layers),
        )

    @property
    def _layer_weights(self) -> dict[str, float]:
        weights = {"attention": self.attention_score_weight, "layers": self.layer_state_weight}
        weights |= {"feature_map": self.feature_map_weight, "attention_map": self.attention_map_weight}
        return {output: weight for output, weight in weights.items() if weight}

    @property
    def scores(self) -> Mapping[str, str]:  # type: ignore[override]  # a constant of other objectives
        scores = {output: LAYER_SCORES[output] for output in self._layer_weights}
        return ({"mlm": "masked_lm"} if self.has_head else {}) | scores

    @property
    def first_step(self) -> int:  # type: ignore[override]  # a constant of other objectives
        return 0 if self.transfer is None else self.transfer.steps

    @property
    def main_score(self) -> str:  # type: ignore[override]  # a constant of other objectives
        return "masked_lm" if self.has_head else LAYERS_SCORE

    def find_further_scores(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return the weighted sum of the losses of layers, if there are some."""
        means = {
            output: sums[f"{LAYER_SCORES[output]}_loss"] / sums[f"{LAYER_SCORES[output]}_weight"]
            for output in self._layer_weights
        }
        total = sum(weight * means[output] for output, weight in self._layer_weights.items())
        return {f"{LAYERS_SCORE}_loss": total} if means else {}

    def make_batch(self, features: Features) -> Batch:
        x, y, weights = super().make_batch(features)
        of_rows = np.zeros((len(x["token_ids"]), 1), "int32")
        if self.has_soft_targets:
            y, weights = y | {"soft": np.zeros_like(y["mlm"])}, weights | {"soft": weights["mlm"]}
        if self.has_hidden_states:
            labels, mask = np.zeros_like(x["token_ids"]), (x["padding_mask"] > 0).astype("float32")
            y, weights = y | {"hidden": labels}, weights | {"hidden": mask}
        counts = (x["padding_mask"] > 0).sum(axis=1, keepdims=True)  # a mean over tokens, of means over those of rows
        of_maps = np.repeat(counts, self.num_layers, axis=1).astype("float32")
        for output in self._layer_weights:
            weight = of_maps if output in MAPS else np.ones_like(of_rows, "float32")
            y, weights = y | {output: np.zeros_like(weight, "int32")}, weights | {output: weight}
        if not self.has_head:
            x, y, weights = ({name: part[name] for name in part if name not in HEAD} for part in (x, y, weights))
        return x, y, weights

    def weigh_step(self, batch: Batch, step: int) -> Batch:
        """Return a batch in which the losses of other layers, or of all, have no weight, according to the transfer."""
        if self.transfer is None:
            return batch
        x, y, weights = batch
        of_layers, of_others = self.transfer.find_weights(step), np.float32(step >= self.transfer.steps)
        return x, y, {name: value * (of_layers if name in MAPS else of_others) for name, value in weights.items()}


def pack_copies(documents: Sequence[TokenizedDocument], copies: int, rule: InstanceRule) -> Iterator[TokenRows]:
    """Yield rows of whole texts, up to ROWS at a time."""
    fit, by_row = BestFit(rule.sequence_length), defaultdict(list)
    for copy in range(copies):  # one after the other, so that the texts of a row are mostly different
        texts = list(cut_texts(documents, copy, copies, rule))
        for text, place in zip(texts, fit.place([*map(len, texts)]), strict=True):
            by_row[place[0]].append((text, place))
    for start in range(0, len(by_row), ROWS):
        part = [placed for row in range(start, min(start + ROWS, len(by_row))) for placed in by_row[row]]
        places = [(row - start, place, number) for _, (row, place, number) in part]
        yield join_texts([text for text, _ in part], places, rule.sequence_length)


def cut_texts(
    documents: Sequence[TokenizedDocument], copy: int, copies: int, rule: InstanceRule
) -> Iterator[np.ndarray]:
    """Yield a copy of documents as texts that fit a row, int32, [CLS] and [SEP] included.

    Args:
        copy: number of the copy, below `copies`. In each, the first piece of a long document has another length.
    """
    room = rule.sequence_length - SPECIAL_TOKENS
    for document in documents:
        tokens = document.token_ids
        first = room if len(tokens) <= room else room - room * copy // copies
        for start in (0, *range(first, len(tokens), room)):
            piece = tokens[start : start + room if start else first]
            yield np.concatenate([[rule.cls_id], piece, [rule.sep_id]]).astype(np.int32)


def estimate_packed(sequence_length: int) -> Estimate:
    """Return an upper estimate of packed instances: as if all documents were as long as each is."""
    room = sequence_length - SPECIAL_TOKENS

    def estimate(sentences: int, tokens: int) -> int:
        pieces, rest = divmod(tokens, room)
        return 1000 * (pieces + 1) if pieces else -(-1000 // (sequence_length // (rest + SPECIAL_TOKENS)))

    return estimate


def pack_documents(
    documents: Sequence[np.ndarray], sequence_length: int, copies: int, cls_id: int, sep_id: int
) -> Iterator[np.ndarray]:
    """Yield sequences of token ids, int32, at most `sequence_length` long, [CLS] and [SEP] included.

    Args:
        documents: token ids of each document, none empty or containing `sep_id`.
        sequence_length: most tokens of a sequence.
        copies: how often to use the documents. If all of them together are shorter than a sequence, each copy is a
            sequence of its own, so that no sequence contains a token twice.
    """
    room = sequence_length - SPECIAL_TOKENS
    border = np.array([sep_id], np.int32)
    row = np.concatenate([part for token_ids in documents for part in (token_ids, border)]).astype(np.int32)
    laps, copies = (copies, 1) if len(row) < room else (1, copies)
    for _ in range(laps):
        start, end = 0, len(row) * copies
        while start < end:
            if row[start % len(row)] == sep_id:
                start += 1  # the border between two documents is also one between two sequences
                continue
            text = row.take(np.arange(start, min(start + room, end)), mode="wrap")
            start += len(text)
            yield np.concatenate([[cls_id], text[: len(text) - (text[-1] == sep_id)], [sep_id]]).astype(np.int32)


# Split long records into shorter training sequences, and keep the context around each of them.


def check_cutting(objective: str, record_length: int, sequence_length: int, is_packed: bool = False) -> None:
    """Raise ValueError unless records of an objective have this sequence length or can be split into it."""
    if is_packed and sequence_length != record_length:
        raise ValueError(
            "`pretraining.sequence_length` must be that of the records if these are packed: their texts are whole. "
            f"Received: {sequence_length}, packed records of {record_length} tokens. Leave it out."
        )
    is_divisible = find_objective(objective).is_divisible  # raises for an unknown objective, whatever the lengths
    if sequence_length < record_length and not is_divisible:
        raise ValueError(
            "`pretraining.sequence_length` must be that of the records, unless their objective is mlm: pairs cannot be "
            f"cut. Received: {sequence_length}, records of {record_length} tokens, objective {objective}. Leave it out."
        )
    if sequence_length <= SPECIAL_TOKENS:
        raise ValueError(
            "`pretraining.sequence_length` must leave room for text between [CLS] and [SEP]. Received: "
            f"{sequence_length}. Raise it, or leave it out."
        )
    if sequence_length > record_length:
        raise ValueError(
            "`pretraining.sequence_length` must be at most that of the records. Received: "
            f"{sequence_length}, records of {record_length} tokens. Lower it, or leave it out."
        )


def count_sequences(record_length: int, length: int) -> int:
    """Return the number of sequences that each record is split into, so that no token of a full one is left out."""
    return -(-(record_length - SPECIAL_TOKENS) // (length - SPECIAL_TOKENS))


def cut_record(tokens: np.ndarray, number: int, length: int, record_length: int) -> dict[str, np.ndarray]:
    """Return one of the sequences of a record, evenly spaced in its text, and the rest of its documents.

    Args:
        tokens: int, (n,), before masking, without padding: [CLS] text [SEP], with a [SEP] between two documents.
        number: index of the sequence, below `count_sequences`. Sequences of a record that is not full overlap.
        length: tokens of a sequence, [CLS] and [SEP] included.
        record_length: tokens of a full record.
    Returns:
        input_ids and input_mask, int, (length,), padded with zeros; context_ids, int, (record_length - 2,), the text
        padded with zeros, and context_weights, float32, of that shape: 1 for tokens outside the sequence that are in a
        document of the sequence, 0 elsewhere.
    """
    text, separator, room = tokens[1:-1], tokens[-1], length - SPECIAL_TOKENS
    start = number * max(0, len(text) - room) // max(1, count_sequences(record_length, length) - 1)
    stop = min(start + room, len(text))
    borders = np.flatnonzero(text == separator)
    before, after = borders[borders < start], borders[borders >= stop]
    is_context = np.zeros(len(text), bool)
    is_context[before[-1] + 1 if len(before) else 0 : after[0] if len(after) else len(text)] = True
    is_context[start:stop] = False
    token_ids = np.concatenate([tokens[:1], text[start:stop], tokens[-1:]])
    context_length = record_length - SPECIAL_TOKENS
    unpadded = {
        "input_ids": (token_ids, length),
        "input_mask": (np.ones_like(token_ids), length),
        "context_ids": (text, context_length),
        "context_weights": (is_context.astype(np.float32), context_length),
    }
    return {name: np.pad(row, (0, columns - len(row))) for name, (row, columns) in unpadded.items()}

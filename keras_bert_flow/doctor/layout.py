"""Expected layout of the records of a folder, from its manifest and its vocabulary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from keras_bert_flow.records.checking import check_records_config
from keras_bert_flow.text.objectives.objective import SentenceLabel
from keras_bert_flow.text.objectives.registry import DEFAULT, find_objective
from keras_bert_flow.text.vocabulary.vocab_file import SPECIAL_PIECES


@dataclass(frozen=True)
class Layout:
    """What each record is checked against.

    Attributes:
        vocabulary_size: ids are below it.
        special_ids: ids of [PAD], [UNK], [CLS], [SEP] and [MASK].
        objective: its name; see `text.objectives.registry`.
        mask_unit: `token`; `word`, whose tokens are chosen together; or `span`, whose tokens are also replaced by one
            draw.
        masked_fraction: share of tokens to choose; None if not in the manifest.
        sequence_length: tokens of a record; None: those of the first record read.
        max_predictions: slots for predictions; None: those of the first record read.
    """

    vocabulary_size: int
    special_ids: tuple[int, ...]
    objective: str = DEFAULT
    mask_unit: str = "token"
    masked_fraction: float | None = None
    sequence_length: int | None = None
    max_predictions: int | None = None

    @property
    def sentence_label(self) -> SentenceLabel | None:
        """The label of a pair; None if a record is one text."""
        return find_objective(self.objective).sentence_label

    @property
    def most_padding(self) -> float:
        """Largest share of padding without a warning."""
        return find_objective(self.objective).most_padding


def make_layout(
    config: Mapping[str, Any], pieces: Sequence[str], special_pieces: Sequence[str] = SPECIAL_PIECES
) -> Layout:
    """Make a layout from the configuration in a manifest, which may be empty, and the pieces of the vocabulary.

    Args:
        special_pieces: spellings of [PAD], [UNK], [CLS], [SEP] and [MASK] in this vocabulary.
    Raises:
        ValueError: a special piece is missing, a value of the manifest has another type, or its objective is unknown.
    """
    check_records_config(config)
    objective = config.get("objective", DEFAULT)
    find_objective(objective)
    places = {piece: number for number, piece in enumerate(pieces)}
    missing = [piece for piece in special_pieces if piece not in places]
    if missing:
        raise ValueError(f"A vocabulary must hold {' '.join(special_pieces)}. Received: none of {' '.join(missing)}.")
    return Layout(
        vocabulary_size=config.get("vocabulary_size", len(pieces)),
        special_ids=tuple(places[piece] for piece in special_pieces),
        objective=objective,
        mask_unit=config.get("mask_unit", "word" if config.get("whole_word") else "token"),
        masked_fraction=config.get("masked_fraction"),
        sequence_length=config.get("sequence_length"),
        max_predictions=config.get("max_predictions"),
    )

"""Feed pre-training records to `model.fit`: order is a function of (seed, epoch, index), so resuming is a slice."""

from collections.abc import Iterator, Mapping
from copy import copy
from functools import cached_property, partial
from pathlib import Path

import grain
import numpy as np

from keras_bert_flow.data.accumulation import split_batches
from keras_bert_flow.data.dynamic_masking import (
    DynamicMasking,
    NumberedRecords,
    mask_again,
    read_masking_rule,
    restore_tokens,
    with_fraction,
)
from keras_bert_flow.data.record_tokens import count_tokens, read_tokens, weigh_tokens
from keras_bert_flow.data.record_vocabulary import check_record_vocabulary
from keras_bert_flow.records.checking import check_records
from keras_bert_flow.records.manifest import Manifest
from keras_bert_flow.records.schema import decode_record
from keras_bert_flow.records.tfrecord import RECORD_SUFFIX, TFRecordFile
from keras_bert_flow.text.cutting import check_cutting, count_sequences, cut_record
from keras_bert_flow.text.masking import MaskingRule
from keras_bert_flow.text.objectives import MLM_NSP, SENTENCE_TASKS
from keras_bert_flow.text.randomness import keyed_generator
from keras_bert_flow.text.tokenizer import WordPieceTokenizer
from keras_bert_flow.text.vocabulary import VOCABULARY_FILE

READING = grain.ReadOptions(num_threads=1, prefetch_buffer_size=16)  # one thread decodes 20,000 records a second
ROWS = 1 << 50  # as good as endless; grain's own endless length is too large for batches of one
MASKINGS = ("static", "dynamic")
SAMPLE_SEQUENCES = 1000  # a second; their mean context is known to some hundredths


class PretrainingRecords:
    """The records of one part of a published folder, by number.

    Args:
        folder: what `kbf records` made.
        part: `train` or `held_out`.
        verify: compare the sha256 of every file with the manifest first.
        vocabulary_file: the model's vocab.txt, where it is not the one in the folder.
        sequence_length: cut each record of the objective `mlm` into sequences of so many tokens, which take its place
            under a number of their own, with masks that depend on the number alone. They have the rest of their
            documents beside them; see `cutting.cut_record`.
    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is changed, damaged or in no manifest, the vocabulary is not that of the records, or they
            cannot be cut so.
    """

    def __init__(
        self,
        folder: str | Path,
        part: str = "train",
        verify: bool = True,
        vocabulary_file: str | Path | None = None,
        sequence_length: int | None = None,
    ):
        self.manifest: Manifest = check_records(folder, digests=verify)
        self._folder = Path(folder)
        self._vocabulary_size = self.manifest.config["vocabulary_size"]
        check_record_vocabulary(Path(folder) / VOCABULARY_FILE, self._vocabulary_size, vocabulary_file)
        files = [file for file in self.manifest.files if file.name.startswith(f"{part}-")]
        self._files = [
            _open_file(Path(folder) / file.name, file.records) for file in files if file.name.endswith(RECORD_SUFFIX)
        ]
        self._ends = np.cumsum([len(file) for file in self._files])
        self.record_length = self.manifest.config["sequence_length"]
        self.sequence_length = self.record_length if sequence_length is None else sequence_length
        check_cutting(self.objective, self.record_length, self.sequence_length)
        self._count = count_sequences(self.record_length, self.sequence_length)
        self._rule = None if self.is_whole else self.read_masking_rule()

    def __len__(self) -> int:
        return (int(self._ends[-1]) if len(self._ends) else 0) * self._count

    def __getitem__(self, index: int) -> Mapping[str, np.ndarray]:
        """Return the features of a record, or of a sequence cut out of it.

        Raises:
            ValueError: it is damaged, of another shape, or holds ids beyond the vocabulary; the message names file and
                record.
        """
        if self.is_whole:
            return self._read(index)
        features = self._read(index // self._count)
        tokens = restore_tokens(features)[: features["input_mask"].sum()]
        cut = cut_record(tokens, index % self._count, self.sequence_length, self.record_length)
        none = dict.fromkeys(("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"), np.zeros(0, np.int64))
        zeros = {"segment_ids": np.zeros_like(cut["input_ids"]), "next_sentence_labels": np.zeros(1, np.int64)}
        return mask_again(cut | none | zeros, self._rule, keyed_generator("cut", index))

    def _read(self, index: int) -> Mapping[str, np.ndarray]:
        file = int(np.searchsorted(self._ends, index, side="right"))
        position = index - (int(self._ends[file - 1]) if file else 0)
        record, place = self._files[file][position], f"record {position} of {self._files[file].path}"
        try:
            features = decode_record(record)
        except ValueError as error:
            raise ValueError(f"R{place[1:]}: {error}") from error
        self._check_shapes(features, place)
        ids = np.concatenate([features["input_ids"], features["masked_lm_ids"]])
        # Without its sign, a negative id is above every size.
        largest = ids.view(np.uint64).max().astype(np.int64)
        if not 0 <= largest < self._vocabulary_size:
            raise ValueError(
                f"Token ids must be below the vocabulary's size, {self._vocabulary_size}. Received: {largest} in "
                f"{place}. Rebuild the records with the model's vocabulary."
            )
        return features

    def _check_shapes(self, features: Mapping[str, np.ndarray], place: str) -> None:
        """Raise ValueError for shapes that no batch can hold, and places that no tensor has: jax would clip them."""
        masks, length = features["masked_lm_positions"].shape, self.record_length
        shapes = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), (length,))
        shapes |= dict.fromkeys(("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"), masks)
        shapes["next_sentence_labels"] = (1,)
        wrong = [name for name, shape in shapes.items() if features[name].shape != shape]
        positions = features["masked_lm_positions"]
        if not wrong and positions.size and not 0 <= positions.min() <= positions.max() < length:
            wrong = ["masked_lm_positions"]
        if wrong or not positions.size:
            raise ValueError(
                f"A record must be of {length} tokens. Received: another `{wrong[0] if wrong else 'masked_lm_ids'}` in "
                f"{place}. Rebuild the records."
            )

    def read_masking_rule(self, masked_fraction: float | None = None) -> MaskingRule:
        """Return how the records were masked, or the same with another share; see `dynamic_masking`."""
        rule = read_masking_rule(self._folder, self.manifest.config)
        if masked_fraction is None and self.is_whole:
            return rule
        return with_fraction(rule, masked_fraction or rule.masked_fraction, self.sequence_length)

    def read_tokenizer(self) -> WordPieceTokenizer:
        """Return the tokenizer that the records were made with."""
        return WordPieceTokenizer.from_file(self._folder / VOCABULARY_FILE, self.manifest.config.get("cased", False))

    @cached_property
    def label_weights(self) -> np.ndarray:
        """What each token counts as a label of a bag of words, float32, (vocabulary,); they are counted once."""
        batches, special = read_tokens(self.uncut, self.record_length), self.read_tokenizer().special_ids
        return weigh_tokens(count_tokens(batches, self._vocabulary_size, special))

    @cached_property
    def mean_context(self) -> float:
        """How many tokens of the rest of its documents a sequence has on average, told by a sample; at least 1."""
        if self.is_whole:
            return 1.0
        step = max(1, len(self) // SAMPLE_SEQUENCES)
        counts = [self[number]["context_weights"].sum() for number in range(0, len(self), step)]
        return max(1.0, float(np.mean(counts)))

    @property
    def objective(self) -> str:
        """What the records are made for: `mlm_nsp`, `mlm` or `mlm_sop`; see `text.objectives`."""
        return self.manifest.config.get("objective", MLM_NSP)

    @property
    def is_whole(self) -> bool:
        """Whether records are read as they are, and not cut."""
        return self.sequence_length == self.record_length

    @property
    def uncut(self) -> "PretrainingRecords":
        """The same records, read as they are."""
        whole = copy(self)
        whole.sequence_length, whole._count = self.record_length, 1
        vars(whole).pop("mean_context", None)  # that of the sequences, where it is known
        return whole


def pretraining_dataset(
    records: str | Path | PretrainingRecords,
    batch_size: int,
    seed: int = 1,
    start_step: int = 0,
    masking: str = "static",
    accumulate_batches: int = 1,
    share: tuple[int, int] = (0, 1),
    bag_of_words: bool = False,
    masked_fraction: float | None = None,
) -> grain.IterDataset:
    """Return endless shuffled batches (x, y, sample_weight) for `fit`; use with `steps_per_epoch`.

    They are for a `BertMaskedLM` where the objective of the records is `mlm`, else for a `BertPretrainer`.

    Args:
        records: a published folder, or one already opened.
        batch_size: sequences of a batch.
        seed: of the order, and of dynamic masks; each pass over the records has another order.
        start_step: batches to leave out at the start, at no cost.
        masking: `static`, the masks of the records, or `dynamic`, other masks in each pass.
        accumulate_batches: parts in which each batch comes, for an optimizer that accumulates as many and losses that
            are sums (`models.defaults.token_loss`).
        share: (number, count): which of `count` equal runs of each batch's rows to read; the others are not read.
        bag_of_words: give the masked tokens once more, for a `BagOfWordsPretrainer`, and where records are cut the rest
            of the document with them; frequent ones with less weight (`record_tokens.weigh_tokens`), for which the
            records are read.
        masked_fraction: of dynamic masks, in place of that of the records.
    Raises:
        ValueError: another `masking`, the records do not say how they were masked, or a batch has no equal shares.
    """
    records = records if isinstance(records, PretrainingRecords) else PretrainingRecords(records)
    if masking not in MASKINGS:
        raise ValueError(f"`masking` must be one of {', '.join(MASKINGS)}. Received: masking={masking!r}.")
    if masking == "dynamic":
        dataset = shuffle_endlessly(grain.MapDataset.source(NumberedRecords(records)), seed)
        dataset = dataset.map_with_index(DynamicMasking(records.read_masking_rule(masked_fraction), len(records), seed))
    else:
        dataset = shuffle_endlessly(grain.MapDataset.source(records), seed)
    words = {"label_weights": records.label_weights, "mean_context": records.mean_context} if bag_of_words else {}
    to_batch = partial(to_model_batch, has_sentence_labels=records.objective in SENTENCE_TASKS, **words)
    number, count = share
    if batch_size % count:
        raise ValueError(f"A batch must divide into equal shares. Received: batch_size={batch_size}, {count} shares.")
    batches = dataset.batch(batch_size // count)[number::count].map(to_batch)
    batches = batches[start_step:].to_iter_dataset(READING)
    return split_batches(batches, accumulate_batches) if accumulate_batches > 1 else batches


def shuffle_endlessly(dataset: grain.MapDataset, seed: int) -> grain.MapDataset:
    """Repeat a data set in another order for each pass.

    Raises:
        ValueError: it is empty.
    """
    if not len(dataset):
        raise ValueError("There must be something to train on. Received: none. Give more text.")
    return dataset.seed(seed).shuffle().repeat(ROWS // len(dataset))


def ordered_batches(
    records: PretrainingRecords, batch_size: int, limit: int, share: tuple[int, int] = (0, 1)
) -> Iterator[tuple]:
    """Yield the first `limit` records in order, the last batch filled up with rows of weight 0.

    `share` is as of `pretraining_dataset`: every share has as many batches, of as many rows.
    """
    total, (number, count) = min(limit, len(records)), share
    size = batch_size // count
    for start in range(number * size, number * size + total, batch_size):
        rows = [records[min(start + offset, total - 1)] for offset in range(size)]
        batch = {name: np.stack([row[name] for row in rows]) for name in rows[0]}
        is_real = (np.arange(start, start + size) < total).astype("float32")
        x, y, weights = to_model_batch(batch, records.objective in SENTENCE_TASKS)
        yield x, y, {name: (weight.T * is_real).T for name, weight in weights.items()}


def to_model_batch(
    features: Mapping[str, np.ndarray],
    has_sentence_labels: bool = True,
    label_weights: np.ndarray | None = None,
    mean_context: float = 1.0,
) -> tuple[dict, dict, dict]:
    """Rename the features of a batch to the model's inputs, labels and sample weights.

    Shapes: token_ids, segment_ids, padding_mask (batch, length); mask_positions, `mlm` labels and weights
    (batch, masks_per_sequence); `nsp` labels and weights (batch,), where the objective has them; `words` labels and
    weights (batch, masks_per_sequence + context), where tokens have weights as labels, of (vocabulary,). A context of
    `mean_context` tokens counts as much as the masked tokens together.
    """
    x = {
        "token_ids": features["input_ids"].astype("int32"),
        "segment_ids": features["segment_ids"].astype("int32"),
        "padding_mask": features["input_mask"].astype("int32"),
        "mask_positions": features["masked_lm_positions"].astype("int32"),
    }
    y, weights = {"mlm": features["masked_lm_ids"].astype("int32")}, {"mlm": features["masked_lm_weights"]}
    if has_sentence_labels:
        y["nsp"] = features["next_sentence_labels"][:, 0].astype("int32")
        weights["nsp"] = np.ones(len(y["nsp"]), "float32")
    if label_weights is None:
        return x, y, weights
    context = (features["context_ids"], features["context_weights"] / mean_context) if "context_ids" in features else ()
    return add_bag_of_words((x, y, weights), label_weights, *context)


def add_bag_of_words(
    batch: tuple[dict, dict, dict],
    label_weights: np.ndarray,
    context_ids: np.ndarray | None = None,
    context_shares: np.ndarray | None = None,
) -> tuple[dict, dict, dict]:
    """Give the masked tokens to the output `words` as well, and the context beside them, each with its weight.

    Args:
        batch: inputs, labels and sample weights, with those of `mlm`.
        label_weights: of each token as a label, (vocabulary,).
        context_ids: further labels, (batch, context).
        context_shares: what each of them counts of all masked tokens of its row together, (batch, context).
    """
    x, y, weights = batch
    labels, counts = y["mlm"], weights["mlm"]
    if context_ids is not None:
        labels = np.concatenate([labels, context_ids.astype("int32")], axis=1)
        counts = np.concatenate([counts, context_shares * counts.sum(axis=1, keepdims=True)], axis=1)
    return x, y | {"words": labels}, weights | {"words": counts * label_weights[labels]}


def _open_file(path: Path, records: int | None) -> TFRecordFile:
    file = TFRecordFile(path)
    if records is not None and len(file) != records:
        raise ValueError(
            f"A file must hold the records of its manifest. Received: {path}, with {len(file)} instead of {records}. "
            "Build the folder again."
        )
    return file

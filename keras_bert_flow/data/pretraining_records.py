"""Random access to pre-training records, whole or cut, with their tokenizer, and as text to show."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np

from keras_bert_flow.data.order import RandomAccess, make_masking_rule, mask_again, restore_tokens
from keras_bert_flow.files.inputs import find_carrier
from keras_bert_flow.records.example import SPAN_IDS, decode_record
from keras_bert_flow.records.tfrecord import INDEX_SUFFIX, RECORD_SUFFIX, TFRecordFile, check_records
from keras_bert_flow.results.artifacts import OpenedFiles
from keras_bert_flow.results.manifest import Manifest
from keras_bert_flow.results.publishing import verify
from keras_bert_flow.stores.fetching import fetch
from keras_bert_flow.text.masking import MaskingRule, count_masks
from keras_bert_flow.text.objectives import DEFAULT
from keras_bert_flow.text.objectives.mlm import check_cutting, count_sequences, cut_record
from keras_bert_flow.text.objectives.objective import find_objective
from keras_bert_flow.text.rows import keyed_generator
from keras_bert_flow.text.tokenizers.files import (
    find_difference,
    find_tokenizer_file,
    list_tokenizer_files,
    read_tokenizer_file,
)
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer

# Restore the tokens of pre-training records, count them, and weight them as labels.

MOST_TOKENS = 16_000_000  # more tokens change little, and would take more than seconds
BATCH_TOKENS = 1 << 21
# Tokens above this share of the text count less: word2vec's threshold for 10^9 words is 1e-5, for small corpora 1e-3.
FREQUENT = 1e-4


def read_tokens(records: RandomAccess, length: int) -> Iterator[np.ndarray]:
    """Yield batches of the records' tokens before masking, int, (sequences, length).

    If there are more than `MOST_TOKENS` tokens, evenly spaced records are read.
    """
    step = max(1, -(-len(records) * length // MOST_TOKENS))
    numbers = range(0, len(records), step)
    size = max(1, BATCH_TOKENS // length)
    for start in range(0, len(numbers), size):
        yield np.stack([restore_tokens(records[number]) for number in numbers[start : start + size]])


def count_tokens(
    batches: Iterable[np.ndarray], vocabulary_size: int, special_ids: Sequence[int] | np.ndarray
) -> np.ndarray:
    """Return the frequency of each token, int, (vocabulary,); special pieces are not counted."""
    counts = sum(
        (np.bincount(rows.ravel(), minlength=vocabulary_size) for rows in batches), np.zeros(vocabulary_size, "int64")
    )
    counts[list(special_ids)] = 0
    return counts


def weigh_tokens(counts: np.ndarray) -> np.ndarray:
    """Return label weights that down-weight frequent tokens, float32, (vocabulary,).

    A weight is sqrt(`FREQUENT` / share of the text), at most 1: the probability with which word2vec keeps a word.

    Source: Mikolov et al. 2013, section 2.3; arXiv:1310.4546.
    """
    shares = counts / max(1, counts.sum())
    return np.sqrt(FREQUENT / np.maximum(shares, FREQUENT)).astype("float32")


# Check that records were made with the tokenizer of the model that reads them.


class RecordsFolder:
    """A published folder of pre-training records whose manifest and tokenizer are opened once.

    It is made for a check, and passed on to what reads the records.

    Args:
        path: output of `kbf records`, local or remote; see `stores.fetching.fetch`. Records may still be on their way.
    Attributes:
        folder: the folder on this disk.
        files: its files.
    """

    def __init__(self, path: str | Path):
        self.folder, self.files = fetch(path, wait=False), OpenedFiles(passing=(RECORD_SUFFIX, INDEX_SUFFIX))
        self._tokenizer: tuple[Any, Tokenizer | None] = (None, None)

    @classmethod
    def of(cls, records: "str | Path | RecordsFolder") -> "RecordsFolder":
        """Return a folder of records: the one that is given, or that of a path."""
        return records if isinstance(records, RecordsFolder) else cls(records)

    def __fspath__(self) -> str:
        return str(self.folder)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_tokenizer": (None, None)}

    def check(self, digests: bool = True) -> Manifest:
        """Check the files against the manifest, and return it; arguments and errors as for `check_records`."""
        return check_records(self.folder, digests, self.files)

    def check_vocabulary(self, vocabulary_size: int, other: str | Path | None) -> None:
        """Raise ValueError unless records and model have the same vocabulary, and make it into the same tokens.

        Args:
            vocabulary_size: vocabulary size in the manifest of the records.
            other: the file of the model's tokenizer; None for a new model.
        """
        path, tokenizer = find_tokenizer_file(self.folder), self.tokenizer
        if tokenizer.vocabulary_size != vocabulary_size:
            raise ValueError(
                f"Records must come with the vocabulary that they were made with, of {vocabulary_size} pieces. "
                f"Received: {path}, with {tokenizer.vocabulary_size}. Build the folder again."
            )
        if other is not None and (difference := find_difference(tokenizer, read_tokenizer_file(other))) is not None:
            raise ValueError(
                f"Records must be made with the model's tokenizer. Received: {path} and {other}, with {difference}. "
                f"Build the records again with --vocab {other}."
            )

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the records were made with; it is parsed again if its file has changed.

        Raises:
            FileNotFoundError, ValueError: as for `text.tokenizers.files.read_tokenizer_file`.
        """
        path = find_tokenizer_file(self.folder)
        content, tokenizer = self._tokenizer
        if tokenizer is None or self.files.map(path) is not content:
            tokenizer = read_tokenizer_file(path, read=self.files.read)
            self._tokenizer = self.files.map(path), tokenizer
        return tokenizer


SAMPLE_WORDS = 10_000  # sequences, read in a second; their mean is accurate to a few thousandths
SAMPLE_SEQUENCES = 1000  # takes a second; their mean context is accurate to a few hundredths


class PretrainingRecords:
    """The pre-training records of one part of a published folder, with random access by index.

    Args:
        folder: output of `kbf records`, local or remote; see `stores.fetching.fetch`. Records that are still being
            downloaded are read from the remote store.
        part: `train` or `held_out`.
        verify: first compare the sha256 of every file with the manifest.
        vocabulary_file: the file of the model's tokenizer. Default: the one in the folder.
        sequence_length: cut each record of the objective `mlm` into sequences of this many tokens. Each sequence has
            its own index, and masks that depend on the index alone. It comes with the rest of its documents as
            context; see `text.objectives.mlm.cut_record`.
    Attributes:
        manifest: that of the folder.
        record_length, sequence_length: tokens of a record, and of what is read of it.
        objective: name of the pre-training objective of the records; see `text.objectives.objective`.
        is_whole: whether records are read whole, not cut.
    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is changed, damaged or in no manifest, the vocabulary is not that of the records, or they
            cannot be cut to this length.
    Example:
        >>> records = kbf.PretrainingRecords("records")
        >>> len(records), records.sequence_length
        (23, 16)
        >>> held_out = kbf.PretrainingRecords("records", part="held_out")
    """

    def __init__(
        self,
        folder: str | Path | RecordsFolder,
        part: str = "train",
        verify: bool = True,
        vocabulary_file: str | Path | None = None,
        sequence_length: int | None = None,
    ):
        self._source = RecordsFolder.of(folder)
        folder = self._source.folder
        self.manifest: Manifest = self._source.check(digests=verify)
        self._vocabulary_size = self.manifest.config["vocabulary_size"]
        self._source.check_vocabulary(self._vocabulary_size, vocabulary_file)
        files = [file for file in self.manifest.files if file.name.startswith(f"{part}-")]
        self._files = []
        for listed in files:
            if listed.name.endswith(RECORD_SUFFIX):
                file = TFRecordFile(folder / listed.name)
                if listed.records not in (None, len(file)):
                    raise ValueError(
                        f"A file must hold the records of its manifest. Received: {file.path}, with {len(file)} "
                        f"instead of {listed.records}. Build the folder again."
                    )
                self._files.append(file)
        self._ends = np.cumsum([len(file) for file in self._files])
        self.record_length = self.manifest.config["sequence_length"]
        self.sequence_length = self.record_length if sequence_length is None else sequence_length
        self.objective: str = self.manifest.config.get("objective", DEFAULT)
        self.is_whole = self.sequence_length == self.record_length
        is_packed = self.manifest.config.get("packing", False)
        check_cutting(self.objective, self.record_length, self.sequence_length, is_packed)
        self._count = count_sequences(self.record_length, self.sequence_length)
        self._rule: Any = None if self.is_whole else self.read_masking_rule()

    def __len__(self) -> int:
        return (int(self._ends[-1]) if len(self._ends) else 0) * self._count

    def __getitem__(self, index: int) -> Mapping[str, np.ndarray]:
        """Return the features of a record, or of a sequence cut out of it.

        Raises:
            ValueError: it is damaged, has another shape, or holds ids beyond the vocabulary; the message names the file
                and the record.
        """
        if self.is_whole:
            return self._read(index)
        features = self._read(index // self._count)
        tokens = restore_tokens(features)[: np.count_nonzero(features["input_mask"])]
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
        # As an unsigned integer, a negative id is above every size.
        largest = ids.view(np.uint64).max().astype(np.int64)
        if not 0 <= largest < self._vocabulary_size:
            raise ValueError(
                f"Token ids must be below the vocabulary's size, {self._vocabulary_size}. Received: {largest} in "
                f"{place}. Rebuild the records with the model's vocabulary."
            )
        return features

    def _check_shapes(self, features: Mapping[str, np.ndarray], place: str) -> None:
        """Raise ValueError for inconsistent shapes, and for positions out of range, which JAX would clip."""
        masks, length = features["masked_lm_positions"].shape, self.record_length
        shapes = dict.fromkeys(("input_ids", "input_mask", "segment_ids"), (length,))
        shapes |= dict.fromkeys(("masked_lm_positions", "masked_lm_ids", "masked_lm_weights"), masks)
        shapes["next_sentence_labels"] = (1,)
        if find_objective(self.objective).has_spans:
            shapes[SPAN_IDS] = masks
        wrong = [name for name, shape in shapes.items() if name not in features or features[name].shape != shape]
        positions = features["masked_lm_positions"]
        if not wrong and positions.size and not 0 <= positions.min() <= positions.max() < length:
            wrong = ["masked_lm_positions"]
        if wrong or not positions.size:
            raise ValueError(
                f"A record must be of {length} tokens. Received: another `{wrong[0] if wrong else 'masked_lm_ids'}` in "
                f"{place}. Rebuild the records."
            )

    def wait(self) -> None:
        """Wait until every record is on this disk, so that reading all of them needs no requests to the store."""
        for file in self._files:
            if (carrier := find_carrier(file.path)) is not None:
                carrier.wait(file.path)

    @property
    def is_here(self) -> bool:
        """Whether every record is on this disk."""
        return all(find_carrier(file.path) is None for file in self._files)

    def read_masking_rule(self, masked_fraction: float | None = None) -> MaskingRule:
        """Return the masking rule of the records, or the same with another masked fraction."""
        rule = make_masking_rule(self._source.folder, self.manifest.config, self._source.tokenizer)
        if masked_fraction is None and self.is_whole:
            return rule
        fraction = masked_fraction or rule.masked_fraction
        return replace(rule, masked_fraction=fraction, max_predictions=count_masks(self.sequence_length, fraction))

    def read_tokenizer(self) -> Tokenizer:
        """Return the tokenizer that the records were made with."""
        return self._source.tokenizer

    @cached_property
    def label_weights(self) -> np.ndarray:
        """Weight of each token as a bag-of-words label, float32, (vocabulary,); tokens are counted once."""
        self.wait()
        batches, special = read_tokens(self.uncut, self.record_length), self.read_tokenizer().special_ids
        return weigh_tokens(count_tokens(batches, self._vocabulary_size, special))

    @cached_property
    def mean_context(self) -> float:
        """Mean number of context tokens per sequence, estimated from a sample; at least 1."""
        if self.is_whole:
            return 1.0
        step = max(1, len(self) // SAMPLE_SEQUENCES)
        counts = [self[number]["context_weights"].sum() for number in range(0, len(self), step)]
        return max(1.0, float(np.mean(counts)))

    @cached_property
    def mean_words(self) -> float:
        """Mean number of words per sequence, estimated from a sample; punctuation counts as words of its own."""
        tokenizer = self.read_tokenizer()
        is_word = np.array(tokenizer.starts_word, bool)
        is_word[[*tokenizer.special_ids]] = False
        step = max(1, len(self) // SAMPLE_WORDS)
        samples = (self[number] for number in range(0, len(self), step))
        return float(np.mean([np.sum(is_word[restore_tokens(row)] & (row["input_mask"] > 0)) for row in samples]))

    @property
    def uncut(self) -> "PretrainingRecords":
        """The same records, read whole."""
        whole = copy(self)
        whole.sequence_length, whole.is_whole, whole._count = self.record_length, True, 1
        for name in ("mean_context", "mean_words"):
            vars(whole).pop(name, None)  # drop the cached value of the cut sequences
        return whole


# Show pre-training records as text, with their masks.

PARTS = ("train", "held_out")
LEGEND = "[MASK: word] hidden, [KEPT: word] to predict though shown, [RANDOM other: word] replaced by another"


def show_examples(folder: str | Path, count: int = 3, part: str = "train") -> str:
    """Return the first records of a part as text; the order of records in a file is random.

    Args:
        folder: output of `kbf records`; the sizes of all files are checked, and the digests of those that are read.
        count: number of records.
        part: `train` or `held_out`.
    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file or record is damaged, ids are beyond the vocabulary, or the part has no records.
    """
    folder = Path(folder)
    if part not in PARTS:
        raise ValueError(f"The part must be one of {', '.join(PARTS)}. Received: {part}.")
    manifest = check_records(folder, digests=False)
    vocabulary = find_tokenizer_file(folder)
    verify(*list_tokenizer_files(vocabulary))
    tokenizer = read_tokenizer_file(vocabulary)
    objective = manifest.config.get("objective", DEFAULT)
    names = [file.name for file in manifest.files if file.name.startswith(f"{part}-")]
    blocks = [LEGEND]
    for path in (folder / name for name in names if name.endswith(RECORD_SUFFIX)):
        if len(blocks) > count:
            break
        verify(path, f"{path}{INDEX_SUFFIX}")
        file = TFRecordFile(path)
        for position in range(min(len(file), count + 1 - len(blocks))):
            place = f"record {position} of {path.name}"
            blocks.append(show_record(decode_record(file[position]), tokenizer, place, objective))
    if len(blocks) == 1:
        raise ValueError(f"There must be {part} records to show. Received: {folder}, with none. Try the other --part.")
    return "\n\n".join(blocks)


def show_record(features: Mapping[str, np.ndarray], tokenizer: Tokenizer, place: str, objective: str) -> str:
    """Format one record: a header line, then each segment, or each text of a packed record, on its own line."""
    pieces, ids, length = tokenizer.pieces, features["input_ids"], int(np.count_nonzero(features["input_mask"]))
    largest = int(max(ids.max(), features["masked_lm_ids"].max()))
    if largest >= len(pieces) or min(ids.min(), features["masked_lm_ids"].min()) < 0:
        raise ValueError(
            f"Token ids must be below the vocabulary's size, {len(pieces)}. Received: {largest} in {place}. "
            "Rebuild the records."
        )
    words = [pieces[token] for token in ids[:length]]
    predicted = features["masked_lm_weights"] > 0
    for position, original in zip(
        features["masked_lm_positions"][predicted], features["masked_lm_ids"][predicted], strict=True
    ):
        if position >= length:
            raise ValueError(f"A masked place must hold a token. Received: {position} in {place}. Rebuild the records.")
        shown, word = words[position], pieces[original]
        if shown == tokenizer.mask_token:
            words[position] = f"[MASK: {word}]"
        else:
            words[position] = f"[KEPT: {word}]" if shown == word else f"[RANDOM {shown}: {word}]"
    head = [place]
    if label := find_objective(objective).sentence_label:
        head.append(label.meanings[int(features["next_sentence_labels"][0])])
    head += [f"{length} tokens", f"{int(predicted.sum())} predictions", f"{len(ids) - length} padding"]
    numbers, is_second = features["input_mask"][:length], features["segment_ids"][:length] == 1
    parts = {"A": ~is_second, "B": is_second}
    if (most := numbers.max(initial=0)) > 1:
        parts = {str(number): numbers == number for number in range(1, most + 1)}
    lines = [f"  {name}  {' '.join(compress(words, part))}" for name, part in parts.items() if part.any()]
    return "\n".join([", ".join(head), *lines])

"""The steps between documents and records: token ids, pools, and masked instances."""

import pickle
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import apache_beam as beam
import numpy as np

from beam_jobs.results import tag_counters
from beam_jobs.spilling import SortThroughFiles, group_sorted
from keras_bert_flow.config import RecordsConfig
from keras_bert_flow.records.schema import encode_records
from keras_bert_flow.text.documents import ID_BYTES, Document
from keras_bert_flow.text.masking import MaskingRule
from keras_bert_flow.text.objectives import LABEL_NAMES, InstanceRule, Instances, build_instances
from keras_bert_flow.text.pool import TokenizedDocument
from keras_bert_flow.text.randomness import keyed_fraction, keyed_number
from keras_bert_flow.text.tokenizer import WordPieceTokenizer

DOCUMENTS_A_POOL = 64  # enough for the choice of a random document to be free, few enough to hold
TRAIN, HELD_OUT = "train", "held_out"
# Training or held out; documents, each of them once, in the order of their ids; how many further copies there were
DocumentPool = tuple[str, list[TokenizedDocument], int]
_POOL = ">BQ"  # held out or not, and the number of the pool
_MIN_BUCKETS, _BUCKET_BYTES = 32, 16_000_000  # of text


@dataclass(frozen=True)
class RecordRule:
    """What the steps need: the settings, the tokenizer, and the seed of every random choice."""

    config: RecordsConfig
    tokenizer: WordPieceTokenizer
    seed: int

    @property
    def instances(self) -> InstanceRule:
        config, tokenizer = self.config, self.tokenizer
        return InstanceRule(
            objective=config.objective,
            sequence_length=config.sequence_length,
            short_fraction=config.short_fraction,
            cls_id=tokenizer.cls_id,
            sep_id=tokenizer.sep_id,
            masking=MaskingRule.of(tokenizer, config.masked_fraction, config.max_predictions, config.mask_unit),
        )


class TokenizeDocuments(beam.DoFn):
    """Encode the sentences of a document; those without a token, and documents without a sentence, are dropped."""

    def __init__(self, rule: RecordRule):
        self._tokenizer = rule.tokenizer  # sent to workers with this step alone: it is the largest thing to send

    def process(self, document: Document) -> Iterator[TokenizedDocument]:
        sentences = [ids for ids in self._tokenizer.encode_batch(document.sentences) if len(ids)]
        if not sentences:
            yield from tag_counters([("documents_without_tokens", 1)])
            return
        token_ids = np.concatenate(sentences).astype(np.int32)
        yield TokenizedDocument(document.id, token_ids, np.array([len(ids) for ids in sentences], np.int32))
        yield from tag_counters(
            [
                ("sentences", len(sentences)),
                ("tokens", len(token_ids)),
                ("unknown_tokens", int(np.sum(token_ids == self._tokenizer.unk_id))),
                ("documents_of_one_sentence", int(len(sentences) == 1)),
            ]
        )


class PoolDocuments(beam.PTransform):
    """Group documents into pools of about DOCUMENTS_A_POOL, those for training apart from the held-out ones.

    Takes a dict of collections: `documents`, and `size`, one (distinct documents, bytes of their text). Emits
    a DocumentPool for each. Which documents share a pool depends on their text and how many distinct ones there are.

    Args:
        rule: the settings and the seed.
        folder: of the job, for the documents on their way; every worker must reach it.
    """

    def __init__(self, rule: RecordRule, folder: Path):
        super().__init__()
        self._held_out_fraction, self._seed = rule.config.held_out_fraction, rule.seed
        self._folder = Path(folder) / "pools"

    def expand(self, inputs):  # a dict of collections, for which Beam has no type hint
        size = beam.pvalue.AsSingleton(inputs["size"])
        choice = (self._held_out_fraction, self._seed)
        placed = inputs["documents"] | "ChoosePool" >> beam.Map(place_document, size, *choice)
        buckets = inputs["size"] | "ListBuckets" >> beam.FlatMap(lambda size: range(_count_buckets(size)))
        return {"items": placed, "buckets": buckets} | "SortPools" >> SortThroughFiles(self._folder, read_pools)


def place_document(
    document: TokenizedDocument, size: tuple[int, int], held_out_fraction: float, seed: int
) -> tuple[int, list[bytes]]:
    """Return the bucket of a document's pool, and one item: the pool's name, the document's id, and the document."""
    part, pool = choose_pool(document.id, size[0], held_out_fraction, seed)
    name = struct.pack(_POOL, part == HELD_OUT, pool) + bytes.fromhex(document.id)
    return pool % _count_buckets(size), [name + pickle.dumps(document, pickle.HIGHEST_PROTOCOL)]


def read_pools(bucket: int, items: Iterator[bytes]) -> Iterator[DocumentPool]:
    """Yield the pools of one bucket, one at a time; of copies of a document only one is ever in memory."""
    for name, rest in group_sorted(items, struct.calcsize(_POOL)):
        is_held_out, _ = struct.unpack(_POOL, name)
        documents, copies = [], 0
        for _, same in group_sorted(rest, ID_BYTES):
            documents.append(pickle.loads(next(same)))
            copies += sum(1 for _ in same)
        yield HELD_OUT if is_held_out else TRAIN, documents, copies


def _count_buckets(size: tuple[int, int]) -> int:
    """Return into how many parts the pools are dealt to workers; the records do not depend on it."""
    return max(_MIN_BUCKETS, size[1] // _BUCKET_BYTES)


def choose_pool(document_id: str, total: int, held_out_fraction: float, seed: int) -> tuple[str, int]:
    """Return the part that a document is for, and the number of its pool, by its id and the number of documents."""
    is_held_out = keyed_fraction(seed, "held out", document_id) < held_out_fraction
    part, share = (HELD_OUT, held_out_fraction) if is_held_out else (TRAIN, 1 - held_out_fraction)
    pools = max(1, int(total * share) // DOCUMENTS_A_POOL)
    return part, keyed_number(seed, "pool", document_id) % pools


class BuildRecords(beam.DoFn):
    """Emit (part, records) for the instances of a pool, held-out documents once, the others `duplication` times.

    Records travel in batches: one by one they would cost the runner more than making them does.
    """

    def __init__(self, rule: RecordRule):
        self._config, self._instances, self._seed = rule.config, rule.instances, rule.seed

    def process(self, pool: DocumentPool) -> Iterator[tuple[str, list[bytes]]]:
        part, documents, copies = pool
        counts = Counter({"duplicate_documents": copies, f"documents_{part}": len(documents)})
        passes = self._config.duplication if part == TRAIN else 1
        for instances in build_instances(documents, passes, self._instances, self._seed):
            self._count(instances, part, counts)
            yield part, _encode(instances)
        yield from tag_counters((name, int(number)) for name, number in counts.items())

    def _count(self, instances: Instances, part: str, counts: Counter) -> None:
        rows = instances.rows
        tokens = int(rows.lengths.sum())
        counts[f"instances_{part}"] += len(rows.lengths)
        counts["positions"] += rows.token_ids.size
        counts["padding_positions"] += rows.token_ids.size - tokens
        counts["instance_tokens"] += tokens
        counts["masked_tokens"] += int(instances.masked.counts.sum())
        if label_name := LABEL_NAMES.get(self._config.objective):
            counts[label_name] += np.count_nonzero(rows.is_random_next)


def _encode(instances: Instances) -> list[bytes]:
    rows, masked = instances.rows, instances.masked
    return encode_records(
        token_ids=masked.token_ids,
        segment_ids=rows.segment_ids,
        lengths=rows.lengths,
        mask_positions=masked.positions,
        mask_ids=masked.mask_ids,
        mask_counts=masked.counts,
        is_random_next=rows.is_random_next,
    )

"""Turn the lines of documents into token ids, packed for their way through files."""

import struct
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import apache_beam as beam
import numpy as np

from beam_jobs.exchange.exchange import Exchange
from beam_jobs.reading import CountingDoFn, Texts
from keras_bert_flow.config.text import RecordsConfig
from keras_bert_flow.console.job_progress import DOCUMENTS, JobPart, note
from keras_bert_flow.text.corpus.documents import ID_BYTES, make_document
from keras_bert_flow.text.objectives.objective import Estimate, find_objective
from keras_bert_flow.text.rows import TokenizedDocument
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer, count_characters, count_stripped, count_unknown

TOKENIZING = JobPart("tokenizing", DOCUMENTS)
# A packed document is its id, the bytes of its text and the number of its sentences, the length of each sentence, and
# the token ids; the last two int32.
_FACTS = struct.Struct("<QI")
_HEADER = struct.Struct(f"<{ID_BYTES}sQI")
_ID = np.dtype(np.int32)


class TokenizeDocuments(CountingDoFn):
    """Tokenize batches of documents and emit batches of packed ones.

    Sentences without tokens, and documents without sentences, are dropped.

    Args:
        tokenizer: encodes the sentences.
        split_lines: whether a line is a paragraph to be split into sentences, rather than one sentence.
    """

    def __init__(self, tokenizer: Tokenizer, split_lines: bool):
        self._tokenizer = tokenizer  # sent to workers only with this step: it is the largest object
        self._split_lines = split_lines

    def process(self, texts: Texts) -> Iterator[list[bytes]]:
        batch, unk_id, counts = [], self._tokenizer.unk_id, self.counts
        strips = self._tokenizer.strips_accents
        for lines in texts:
            document = make_document(lines, self._split_lines)
            token_ids, lengths = array("i"), array("i")
            for sentence in document.sentences:
                text = f" {sentence}" if token_ids else sentence  # as in running text: a space may be part of a piece
                if length := self._tokenizer.encode_into(token_ids, text):
                    lengths.append(length)
                    if unk_id in token_ids[-length:]:
                        counts.update(count_unknown(self._tokenizer, text))
                counts["characters"] += count_characters(sentence)
                if strips and not sentence.isascii():
                    counts["stripped_characters"] += count_stripped(sentence)
            if not lengths:
                counts["documents_without_tokens"] += 1
                continue
            text_bytes = sum(map(count_bytes, document.sentences))
            batch.append(pack_document(document.id, text_bytes, lengths, token_ids))
            counts["sentences"] += len(lengths)
            counts["tokens"] += len(token_ids)
            counts["unknown_tokens"] += token_ids.count(unk_id)
            counts["documents_of_one_sentence"] += len(lengths) == 1
        note(TOKENIZING, len(texts))
        if batch:
            yield batch


def count_bytes(text: str) -> int:
    """Return the size in bytes of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def pack_document(document_id: str, text_bytes: int, lengths: array, token_ids: array) -> bytes:
    """Pack a document.

    Args:
        document_id: digest of its text.
        text_bytes: size of its text in bytes.
        lengths: int32, (sentences,). Number of tokens per sentence.
        token_ids: int32, (tokens,).
    """
    return _HEADER.pack(bytes.fromhex(document_id), text_bytes, len(lengths)) + lengths.tobytes() + token_ids.tobytes()


def read_facts(packed: bytes) -> tuple[int, int, int]:
    """Return the text size in bytes, the number of sentences and the number of tokens of a packed document."""
    text_bytes, sentences = _FACTS.unpack_from(packed, ID_BYTES)
    return text_bytes, sentences, (len(packed) - _HEADER.size) // _ID.itemsize - sentences


def unpack_document(name: bytes, rest: bytes) -> TokenizedDocument:
    """Return a document from its id and the rest of its packed form."""
    _, sentences = _FACTS.unpack_from(rest)
    numbers = np.frombuffer(rest, _ID, offset=_FACTS.size)
    return TokenizedDocument(name.hex(), numbers[sentences:], numbers[:sentences])


# Measure a corpus before its documents are used: number of distinct documents, size, and estimated instances.

BUCKETS = 32  # over which documents are distributed by the first byte of their ids
_SIZES = struct.Struct("<QQ")  # bytes of text and thousandths of an instance, after the id


class CorpusSize(NamedTuple):
    """The size of a corpus, counting copies of a document once.

    Attributes:
        documents: number of documents with at least one token.
        text_bytes: bytes of their sentences.
        instances: upper estimate of the instances from one pass over them, in thousandths.
    """

    documents: int
    text_bytes: int
    instances: int


class MeasureCorpus(beam.PTransform):
    """Emit one CorpusSize for batches of packed documents.

    Copies of a document count once: they do not reach the records, and counting them would make pools with too few
    documents to choose a random next segment from. The ids are sorted, with 36 bytes per document.

    Args:
        config: the objective and the lengths.
        exchange: moves the ids.
    """

    def __init__(self, config: RecordsConfig, exchange: Exchange):
        super().__init__()
        self._estimate = find_objective(config.objective).estimate_instances(
            config.sequence_length, config.short_fraction
        )
        self._exchange = exchange

    def expand(self, batches):
        measured = batches | "MeasureDocuments" >> beam.FlatMap(measure_documents, self._estimate)
        buckets = batches.pipeline | "ListIdBuckets" >> beam.Create(range(BUCKETS))
        count = self._exchange.sort("ids", count_distinct, divide=find_id_group)
        sizes = {"items": measured, "buckets": buckets} | "CountDistinct" >> count
        return sizes | "AddSizes" >> beam.CombineGlobally(add_sizes)


def measure_documents(batch: list[bytes], estimate: Estimate) -> Iterator[tuple[int, list[bytes]]]:
    """Yield each bucket number and its items: the id of a packed document, and its size."""
    buckets: defaultdict[int, list[bytes]] = defaultdict(list)
    for packed in batch:
        text_bytes, sentences, tokens = read_facts(packed)
        facts = _SIZES.pack(text_bytes, estimate(sentences, tokens))
        buckets[packed[0] % BUCKETS].append(packed[:ID_BYTES] + facts)
    yield from buckets.items()


def find_id_group(bucket: int, item: bytes) -> bytes:
    """Return the group of an id in its bucket: the second byte."""
    return item[1:2]


def count_distinct(bucket: int, items: Iterator[bytes]) -> Iterator[CorpusSize]:
    """Yield the size of a bucket or of a group of it, counting each document once."""
    documents = text_bytes = instances = 0
    last = b""
    for item in items:
        if item[:ID_BYTES] != last:
            last = item[:ID_BYTES]
            more_bytes, more_instances = _SIZES.unpack_from(item, ID_BYTES)
            documents += 1
            text_bytes += more_bytes
            instances += more_instances
    yield CorpusSize(documents, text_bytes, instances)


def add_sizes(sizes: Iterable[CorpusSize]) -> CorpusSize:
    """Return the sum of sizes."""
    return CorpusSize(*map(sum, zip(CorpusSize(0, 0, 0), *sizes, strict=True)))

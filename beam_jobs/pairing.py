"""The steps between documents and records: token ids, pools, and masked pairs."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import apache_beam as beam
import numpy as np

from beam_jobs.results import tag_counters
from keras_bert_flow.config import RecordsConfig
from keras_bert_flow.records.schema import encode_record
from keras_bert_flow.text.documents import Document
from keras_bert_flow.text.masking import MaskingRule
from keras_bert_flow.text.pairs import MaskedPair, TokenizedDocument, build_pairs, mask_pair
from keras_bert_flow.text.randomness import keyed_fraction, keyed_generator, keyed_number
from keras_bert_flow.text.tokenizer import WordPieceTokenizer

DOCUMENTS_A_POOL = 64  # enough for the choice of a random document to be free, few enough to hold
TRAIN, HELD_OUT = "train", "held_out"


@dataclass(frozen=True)
class RecordRule:
    """What the steps need: the settings, the tokenizer, and the seed of every random choice."""

    config: RecordsConfig
    tokenizer: WordPieceTokenizer
    seed: int

    @property
    def masking(self) -> MaskingRule:
        return MaskingRule(
            masked_fraction=self.config.masked_fraction,
            max_predictions=self.config.max_predictions,
            mask_id=self.tokenizer.mask_id,
            special_ids=(self.tokenizer.cls_id, self.tokenizer.sep_id),
            starts_word=self.tokenizer.starts_word,
            whole_word=self.config.whole_word,
        )


class TokenizeDocuments(beam.DoFn):
    """Encode the sentences of a document; those without a token, and documents without a sentence, are dropped."""

    def __init__(self, rule: RecordRule):
        self._tokenizer = rule.tokenizer

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

    Emits ((part, pool), documents). Which documents share a pool depends on their text and how many there are.
    """

    def __init__(self, rule: RecordRule):
        super().__init__()
        self._rule = rule

    def expand(self, documents: beam.PCollection) -> beam.PCollection:
        total = documents | "CountDocuments" >> beam.combiners.Count.Globally()
        return (
            documents
            | "ChoosePool" >> beam.Map(choose_pool, beam.pvalue.AsSingleton(total), self._rule)
            | "GroupPool" >> beam.GroupByKey()
        )


def choose_pool(document: TokenizedDocument, total: int, rule: RecordRule) -> tuple[tuple[str, int], TokenizedDocument]:
    held_out_fraction = rule.config.held_out_fraction
    is_held_out = keyed_fraction(rule.seed, "held out", document.id) < held_out_fraction
    part, share = (HELD_OUT, held_out_fraction) if is_held_out else (TRAIN, 1 - held_out_fraction)
    pools = max(1, int(total * share) // DOCUMENTS_A_POOL)
    return (part, keyed_number(rule.seed, "pool", document.id) % pools), document


class BuildRecords(beam.DoFn):
    """Emit (part, record) for every masked pair of a pool, held-out documents once, the others `duplication` times."""

    def __init__(self, rule: RecordRule):
        self._rule = rule

    def setup(self) -> None:
        self._masking = self._rule.masking

    def process(self, pool: tuple[tuple[str, int], Iterable[TokenizedDocument]]) -> Iterator[tuple[str, bytes]]:
        (part, _), documents = pool
        received = sorted(documents, key=lambda document: document.id)
        unique = {document.id: document.sentences for document in received}
        counts = Counter({"duplicate_documents": len(received) - len(unique), f"documents_{part}": len(unique)})
        copies = self._rule.config.duplication if part == TRAIN else 1
        for document_id, sentences in unique.items():
            others = [other for other_id, other in unique.items() if other_id != document_id]
            for copy in range(copies):
                for pair in self._build(document_id, sentences, others, copy):
                    counts[f"instances_{part}"] += 1
                    counts["instance_tokens"] += len(pair.token_ids)
                    counts["masked_tokens"] += len(pair.mask_ids)
                    counts["random_next"] += pair.is_random_next
                    yield part, self._encode(pair)
        yield from tag_counters((name, int(number)) for name, number in counts.items())

    def _build(self, document_id: str, sentences, others, copy: int) -> Iterator[MaskedPair]:
        config, tokenizer = self._rule.config, self._rule.tokenizer
        rng = keyed_generator(self._rule.seed, "pairs", document_id, copy)
        for pair in build_pairs(sentences, others, config.sequence_length, config.short_fraction, rng):
            yield mask_pair(pair, tokenizer.cls_id, tokenizer.sep_id, self._masking, rng)

    def _encode(self, pair: MaskedPair) -> bytes:
        return encode_record(
            token_ids=pair.token_ids,
            segment_ids=pair.segment_ids,
            mask_positions=pair.mask_positions,
            mask_ids=pair.mask_ids,
            is_random_next=pair.is_random_next,
            sequence_length=self._rule.config.sequence_length,
            max_predictions=self._rule.config.max_predictions,
        )

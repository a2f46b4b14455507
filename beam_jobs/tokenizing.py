"""Turn the lines of documents into token ids, packed for their way through files."""

import struct
from array import array
from collections.abc import Iterator

import numpy as np

from beam_jobs.reading import CountingDoFn, Texts
from keras_bert_flow.console.job_progress import DOCUMENTS, JobPart, note
from keras_bert_flow.text.corpus.documents import ID_BYTES, make_document
from keras_bert_flow.text.rows import TokenizedDocument
from keras_bert_flow.text.tokenizers.lost_characters import count_characters, count_stripped, count_unknown
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer

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

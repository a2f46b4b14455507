"""Examine a corpus: how much text there is, how it is split, and what is wrong with it."""

import os
import re
from collections import Counter
from collections.abc import Callable, Sequence

from keras_bert_flow.checks.findings import (
    Diagnosis,
    Finding,
    Lengths,
    Repeats,
    Verdict,
    grade,
    judge,
    judge_lost,
    percent,
    share,
)
from keras_bert_flow.config.text import CorpusConfig
from keras_bert_flow.text.corpus.documents import ReadingRule, make_document, read_documents
from keras_bert_flow.text.corpus.inputs import find_inputs
from keras_bert_flow.text.corpus.lines import advise, describe_rejected, rejected_bytes, rejected_share
from keras_bert_flow.text.tokenizers.normalization import normalize_text
from keras_bert_flow.text.tokenizers.tokenizer import (
    LOST,
    Tokenizer,
    advise_unknown,
    count_characters,
    count_stripped,
    count_unknown,
)
from keras_bert_flow.text.vocabulary import MAX_WORD_CHARACTERS

HISTOGRAMS = {
    "sentences_per_document": "sentences of a document",
    "words_per_sentence": "words of a sentence",
}
LONG_SENTENCE_WORDS = 128  # in word pieces, more than fit into a usual instance
LONG_LINE_BYTES = 100_000
TOLD_BYTES = 100_000
_ONE_MORE_DOCUMENT = "Put blank lines between documents, or give more text: a random next sentence needs another one."
# Control characters other than tab and line ends, and U+FFFD, which decoders put in place of invalid bytes.
_NO_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufffd]")


class CorpusCounts:
    """Streaming counts of a corpus; memory is bounded, except for the longest document."""

    def __init__(self, cased: bool, tokenizer: Tokenizer | None = None):
        self._cased = cased
        self._tokenizer = tokenizer
        self._strips = tokenizer.strips_accents if tokenizer else not cased
        self.totals: Counter = Counter()
        self.lost: Counter = Counter()  # see `tokenizer.LOST`; without a tokenizer, what no vocabulary can encode
        self.sentences, self.words = Lengths(), Lengths()  # per document, per sentence
        self.lines, self.documents = Repeats(), Repeats()
        self.longest_line_bytes = 0

    def add_document(self, lines: Sequence[str], split_lines: bool) -> None:
        document = make_document(lines, split_lines)
        self.documents.add(document.id.encode())
        self.sentences.add(len(document.sentences))
        self.totals["documents_of_one_sentence"] += len(document.sentences) == 1
        for line in lines:
            self._add_line(line)
        for sentence in document.sentences:
            self._add_sentence(sentence)

    def _add_line(self, line: str) -> None:
        data = line.encode()
        self.lines.add(data)
        self.longest_line_bytes = max(self.longest_line_bytes, len(data))
        self.totals["lines"] += 1
        self.totals["text_bytes"] += len(data)
        self.totals["characters"] += len(line)
        if not line.isprintable():  # a cheap test that most lines pass
            self.totals["non_text_characters"] += len(_NO_TEXT.findall(line))
        elif "\ufffd" in line:
            self.totals["non_text_characters"] += line.count("\ufffd")

    def _add_sentence(self, sentence: str) -> None:
        words = normalize_text(sentence, self._cased).split()
        self.words.add(len(words))
        self.totals["long_sentences"] += len(words) > LONG_SENTENCE_WORDS
        self.lost["characters"] += count_characters(sentence)
        self.lost["stripped_characters"] += count_stripped(sentence) if self._strips else 0
        if self._tokenizer:
            ids = self._tokenizer.encode(sentence)
            self.totals["tokens"] += len(ids)
            if unknown := int((ids == self._tokenizer.unk_id).sum()):
                self.totals["unknown_tokens"] += unknown
                self.lost.update(count_unknown(self._tokenizer, sentence))
        elif max(map(len, words), default=0) > MAX_WORD_CHARACTERS:
            long = sum(len(word) for word in words if len(word) > MAX_WORD_CHARACTERS)
            self.lost.update({"unknown_characters": long, "long_word_characters": long})


def examine_corpus(
    path: str,
    corpus: CorpusConfig,
    cased: bool = False,
    tokenizer: Tokenizer | None = None,
    advance: Callable[[float], None] | None = None,
) -> Diagnosis:
    """Read a whole corpus once.

    Args:
        path: a file, a folder or a glob.
        corpus: how its lines are read; its `input` and `strict` are ignored.
        cased: how words are counted without a tokenizer.
        tokenizer: also count tokens and unknown ones.
        advance: called after documents with the number of further bytes read, decompressed.
    Raises:
        FileNotFoundError: the path does not exist.
        ValueError: a file has a format that no corpus has.
    """
    paths = find_inputs([path])
    counts = CorpusCounts(tokenizer.cased if tokenizer else cased, tokenizer)
    split_lines = corpus.lines == "paragraphs"
    # The original lines are needed, too, so they are split into sentences here, not by the reader.
    rule = ReadingRule(corpus.text_field, split_lines=False, max_line_bytes=corpus.max_line_bytes)
    unreadable, empty = [], []
    for name in paths:
        before, told = counts.totals["documents"], counts.totals["bytes_read"]
        try:
            for document in read_documents(name, rule, counts.totals):
                counts.add_document(document.sentences, split_lines)
                unsaid = counts.totals["bytes_read"] - told
                if advance is not None and unsaid >= TOLD_BYTES:
                    advance(unsaid)
                    told += unsaid
        except (OSError, ValueError) as error:
            unreadable.append(f"{name}: {error}")
        else:
            if counts.totals["documents"] == before:
                empty.append(name)
    findings = (
        _judge_files(paths, unreadable, empty),
        *_judge_cutting(counts, corpus),
        *_judge_content(counts, corpus.max_rejected_share),
        *_judge_tokens(counts, tokenizer),
    )
    return Diagnosis(str(path), "corpus", findings, _numbers(paths, counts, tokenizer), HISTOGRAMS)


def _judge_files(paths: Sequence[str], unreadable: Sequence[str], empty: Sequence[str]) -> Finding:
    """Judge whether every file of the corpus can be read to its end and holds a document."""
    if unreadable:
        value = f"{len(unreadable)} of {len(paths):,} cannot be read to their end; {unreadable[0]}"
        return judge("files", False, value, "Restore these files or leave them out.")
    if empty:
        value = f"{len(empty):,} of {len(paths):,} hold no document, such as {empty[0]}"
        return judge("files", "warning", value, "Leave them out, or check their format.")
    return judge("files", True, f"{len(paths):,}", "")


def _judge_cutting(counts: CorpusCounts, corpus: CorpusConfig) -> list[Finding]:
    totals = counts.totals
    documents, single = counts.sentences.count, totals["documents_of_one_sentence"]
    one_sentence: Verdict = "error" if documents and single == documents else grade(share(single, documents), 0.25)
    long_share = share(totals["long_sentences"], counts.words.count)
    mean = share(counts.words.total, counts.words.count)
    other_way = (
        "Put line ends between sentences, or set corpus.lines=paragraphs."
        if corpus.lines == "sentences"
        else "Check that the text has full stops and is no table or list."
    )
    return [
        judge(
            "documents",
            documents > 1,
            f"{documents:,} with {counts.words.count:,} sentences, {counts.words.total:,} words, "
            f"{totals['text_bytes']:,} bytes",
            _ONE_MORE_DOCUMENT if rejected_share(totals) < 0.5 else advise(totals),
        ),
        judge(
            "one sentence",
            one_sentence,
            f"{percent(share(single, documents))} of documents have one sentence",
            "Join short texts into documents, or use an objective without pairs: they give only random next sentences.",
        ),
        judge(
            "long sentences",
            grade(long_share, 0.05, 0.5),
            f"{percent(long_share)} have over {LONG_SENTENCE_WORDS} words; mean {mean:.1f}, "
            f"longest {counts.words.longest:,}",
            other_way,
        ),
        judge(
            "longest line",
            grade(counts.longest_line_bytes, LONG_LINE_BYTES),
            f"{counts.longest_line_bytes:,} bytes",
            f"Break it into paragraphs: lines over {corpus.max_line_bytes:,} bytes are left out.",
        ),
    ]


def _judge_content(counts: CorpusCounts, max_rejected_share: float) -> list[Finding]:
    totals = counts.totals
    rejected = _rejected(totals)
    lines_read, rejected_lines = totals["lines_read"], sum(rejected.values())
    reasons = ", ".join(f"{number:,} {reason.replace('_', ' ')}" for reason, number in rejected.items())
    no_text = share(totals["non_text_characters"], totals["characters"])
    about = "" if counts.lines.is_exact else "about "
    return [
        judge(
            "rejected lines",
            "ok" if not rejected else grade(share(rejected_lines, lines_read), 0, 0.1),
            f"{rejected_lines:,} of {lines_read:,}" + (f": {reasons}" if reasons else ""),
            "Convert to UTF-8 with iconv, check corpus.text_field, and break long lines; --strict names the first one.",
        ),
        judge(
            "rejected bytes",
            grade(rejected_share(totals), 0, max_rejected_share),
            describe_rejected(totals) or f"0 of {totals['bytes_read']:,} bytes",
            f"{advise(totals)} `kbf records` refuses more than {100 * max_rejected_share:.4g} % "
            "(corpus.max_rejected_share).",
        ),
        judge(
            "no text",
            grade(no_text, 0.0001, 0.01),
            f"{percent(no_text)} of characters are controls or U+FFFD",
            "Look for a wrong encoding or binary data; the tokenizer drops such characters.",
        ),
        judge(
            "repeated lines",
            grade(counts.lines.repeated_share, 0.1),
            f"{about}{percent(counts.lines.repeated_share)} of {totals['lines']:,} lines were there before",
            "Remove headers, menus and licences that repeat: the model learns them by heart.",
        ),
        judge(
            "repeated documents",
            grade(counts.documents.repeated_share, 0.01),
            f"{about}{percent(counts.documents.repeated_share)} of {counts.sentences.count:,} documents were there "
            "before",
            "Remove copies: `kbf records` drops equal documents, and near copies reach the held-out part.",
        ),
    ]


def _judge_tokens(counts: CorpusCounts, tokenizer: Tokenizer | None) -> list[Finding]:
    lost = judge_lost(counts.lost)
    if tokenizer is None:
        return [finding for finding in lost if finding.verdict != "ok"]  # with any vocabulary
    unknown = share(counts.totals["unknown_tokens"], counts.totals["tokens"])
    fertility = share(counts.totals["tokens"], counts.words.total)
    return [
        judge(
            "unknown tokens",
            grade(unknown, 0.01, 0.1),
            f"{percent(unknown)} of {counts.totals['tokens']:,} tokens",
            advise_unknown(counts.lost),
        ),
        *lost,
        judge(
            "tokens per word",
            grade(fertility, 2.0),
            f"{fertility:.3f}",
            "Learn a vocabulary from this text, or a larger one: words fall into many pieces.",
        ),
    ]


def _numbers(paths: Sequence[str], counts: CorpusCounts, tokenizer: Tokenizer | None) -> dict:
    totals = counts.totals
    numbers = {
        "files": len(paths),
        "file_bytes": sum(os.path.getsize(path) for path in paths if os.path.exists(path)),
        "documents": counts.sentences.count,
        "documents_of_one_sentence": totals["documents_of_one_sentence"],
        "sentences": counts.words.count,
        "long_sentences": totals["long_sentences"],
        "words": counts.words.total,
        "lines": totals["lines"],
        "lines_read": totals["lines_read"],
        "lines_rejected": _rejected(totals),
        "bytes_read": totals["bytes_read"],
        "bytes_rejected": rejected_bytes(totals),
        "longest_line_bytes": counts.longest_line_bytes,
        "text_bytes": totals["text_bytes"],
        "characters": totals["characters"],
        "non_text_characters": totals["non_text_characters"],
        "repeated_line_share": counts.lines.repeated_share,
        "repeated_document_share": counts.documents.repeated_share,
        "repeats_are_exact": counts.lines.is_exact and counts.documents.is_exact,
        "sentences_per_document": counts.sentences.rows(),
        "words_per_sentence": counts.words.rows(),
    }
    numbers |= {name: counts.lost[name] for name in LOST}
    if tokenizer:
        numbers |= {"tokens": totals["tokens"], "unknown_tokens": totals["unknown_tokens"]}
        numbers["tokens_per_word"] = share(totals["tokens"], counts.words.total)
    return numbers


def _rejected(totals: Counter) -> dict[str, int]:
    prefix = "lines_rejected_"
    return {name.removeprefix(prefix): totals[name] for name in sorted(totals) if name.startswith(prefix)}

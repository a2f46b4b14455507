"""Count tagged words that a model does not see as written, and spans that no window contains whole."""

from collections import Counter
from collections.abc import Sequence

from keras_bert_flow.tasks.core.features import Features
from keras_bert_flow.tasks.tagging.tag_schemes import spans_of
from keras_bert_flow.tasks.tagging.tagged_words import TaggedWords
from keras_bert_flow.tasks.tagging.word_windows import Window
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer


def count_hidden_words(
    tokenizer: Tokenizer, examples: Sequence[TaggedWords], features: Features, scheme: str, strict: bool
) -> dict[str, dict[str, int]]:
    """Count words and spans whose tags must be predicted without seeing all of their text.

    Args:
        features: the examples as encoded by `TokenClassification.encode` with this tokenizer.
        scheme, strict: how spans are read.
    Returns:
        words: total, and by reason no_piece, the tokenizer drops the whole word; unknown, part of it is [UNK]; cut, it
        is longer than a row. spans: total and cut, no window contains the whole span. Each is absent if there is no
        such word or span.
    """
    reason_of = _Reasons(tokenizer, room=(features.sequence_length or 0) - 2)  # [CLS], [SEP]; `encode` sets the length
    words = Counter(reason_of[word] for example in examples for word in example.words)
    total = words.total()
    del words[None]
    spans = _count_spans(examples, features, scheme, strict)
    found = {"words": {"total": total} | dict(sorted(words.items())), "spans": spans}
    return {noun: counts for noun, counts in found.items() if len(counts) > 1}


class _Reasons(dict):
    """Cache of the reason why a word is not shown as written; None if it is."""

    def __init__(self, tokenizer: Tokenizer, room: int):
        super().__init__()
        self._tokenizer, self._room = tokenizer, room

    def __missing__(self, word: str) -> str | None:
        reason: str | None
        pieces = self._tokenizer.encode(word)
        if len(pieces) == 0:
            reason = "no_piece"
        elif len(pieces) > self._room:
            reason = "cut"
        else:
            reason = "unknown" if self._tokenizer.unk_id in pieces else None
        self[word] = reason
        return reason


def _count_spans(examples: Sequence[TaggedWords], features: Features, scheme: str, strict: bool) -> dict[str, int]:
    windows: list[list[Window]] = [[] for _ in examples]
    for owner, window in zip(features.examples.tolist(), features.details, strict=True):
        windows[owner].append(window)
    total, cut = 0, 0
    for example, shown in zip(examples, windows, strict=True):
        for span in spans_of(example.tags or (), scheme, strict):
            total += 1
            cut += not any(window.first <= span.first and span.end <= window.end for window in shown)
    return {"total": total} | ({"cut": cut} if cut else {})

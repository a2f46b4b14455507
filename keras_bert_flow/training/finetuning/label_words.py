"""Label words (verbalizers): the tokens of words that represent the classes of a task."""

from collections.abc import Mapping, Sequence

from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer


def check_label_words(words: Mapping[str, Sequence[str]] | None, labels: Sequence[str]) -> None:
    """Raise ValueError unless there are label words for exactly the classes of the task."""
    if words is not None and set(words) != set(labels):
        raise ValueError(
            "`finetuning.label_words` must name the classes of the task. "
            f"Received: {', '.join(words)}, of {', '.join(labels)}. Give each class its words."
        )


def find_label_words(
    words: Mapping[str, Sequence[str]] | None, labels: Sequence[str], tokenizer: Tokenizer
) -> list[list[int]]:
    """Return the token ids of the label words of each class, in the order of the classes; empty without label words.

    A word that is not a single token is skipped; see `describe_left_out`.

    Raises:
        ValueError: as for `check_label_words`, or no word of a class is a single token.
    """
    check_label_words(words, labels)
    if words is None:
        return []
    found = [_find_whole(words[label], tokenizer) for label in labels]
    for label, ids in zip(labels, found, strict=True):
        if not ids:
            raise ValueError(
                "`finetuning.label_words` must have a word for each class that the vocabulary has whole. "
                f"Received: {', '.join(words[label])} for {label!r}. Choose commoner ones."
            )
    return found


def describe_left_out(words: Mapping[str, Sequence[str]] | None, tokenizer: Tokenizer) -> str | None:
    """Return a one-line message about the words that `find_label_words` skips; None if it uses all."""
    left_out = [word for each in (words or {}).values() for word in each if not _find_whole([word], tokenizer)]
    if not left_out:
        return None
    return f"`finetuning.label_words`: {', '.join(left_out)}: not whole in the vocabulary, so not used."


def _find_whole(words: Sequence[str], tokenizer: Tokenizer) -> list[int]:
    encoded = [tokenizer.encode_word(word) for word in words]
    return [int(ids[0]) for ids in encoded if len(ids) == 1 and ids[0] != tokenizer.unk_id]

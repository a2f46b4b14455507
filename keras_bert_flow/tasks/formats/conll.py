"""Read and write CoNLL columns, and score spans as conlleval does."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

import numpy as np

from keras_bert_flow.tasks.core.metrics import Counts
from keras_bert_flow.tasks.formats.rows import abridge, parse_object, read_lines
from keras_bert_flow.tasks.formats.tagged_words import TaggedWords, spans_of
from keras_bert_flow.text.corpus.inputs import PARQUET

DOCUMENT_MARK = "-DOCSTART-"
LAST = "last"
BLANKS = " \t"  # column separators; other blanks, such as U+00A0, occur within words
Token = tuple[int, str, str | None]  # line of the file, from 1; word; tag


def read_tagged_words(
    path: str | Path,
    word_column: int | str = 0,
    tag_column: int | str = LAST,
    has_labels: bool = True,
    max_examples: int | None = None,
) -> list[TaggedWords]:
    """Read sentences of words and their tags.

    A .jsonl file has one object per line: {"words": [...], "tags": [...]}. A blank line is skipped, or without labels
    read as a sentence without words, so that each line gets a prediction. Any other file has one word per line, in
    columns separated by any number of spaces and tabs; a blank line ends a sentence, and so does a line that begins
    with -DOCSTART-, which is not a word. Both may be gzipped, ending in .gz. UTF-8, with or without a byte order mark;
    lines may end in CR LF.

    Args:
        word_column: number of the column of words, from 0, or "last".
        tag_column: number of the column of tags. JSON lines have names instead of numbers.
        has_labels: whether to read tags.
        max_examples: read at most this many sentences; None reads all.
    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is malformed; the message names file and row.
    """
    path = str(path)
    if not Path(path).is_file():
        raise FileNotFoundError(f"A table must be a file. Received: {path}, which is not one. Check the path.")
    if path.endswith(PARQUET):
        raise ValueError(
            f"Words with tags must be in columns, or in .jsonl. Received: {path}. Write it with "
            "DataFrame.to_json(orient='records', lines=True)."
        )
    if max_examples is not None and max_examples < 1:
        raise ValueError(
            f"`max_examples` must be at least 1. Received: {max_examples}. Leave it out to read every row."
        )
    if path.removesuffix(".gz").endswith(".jsonl"):
        sentences = _parse_jsonl(path, has_labels)
    else:
        columns, given = [], {"word_column": word_column} | ({"tag_column": tag_column} if has_labels else {})
        for name, column in given.items():
            if column != LAST and not re.fullmatch("[0-9]{1,3}", str(column)):
                raise ValueError(
                    f'`{name}` must be a number from 0, or "{LAST}". Received: {column!r}. The first column is number '
                    "0."
                )
            columns.append(-1 if column == LAST else int(column))
        sentences = _group(path, _parse_columns(path, columns))
    examples = list(islice(sentences, max_examples))
    if not examples:
        raise ValueError(f"A table must hold at least one sentence. Received: {path}, which holds none.")
    return examples


def read_predicted_tags(path: str | Path, examples: Sequence[TaggedWords]) -> list[TaggedWords]:
    """Read the predicted tags of some sentences from columns, the word first and the tag last.

    Raises:
        ValueError: the words differ from those of the sentences; the message names file and row.
    """
    found = read_tagged_words(path, 0, LAST)
    for gold, predicted in zip(examples, found, strict=False):
        if tuple(gold.words) != tuple(predicted.words):
            raise ValueError(
                f"{predicted.place(0)}: must have the words of {gold.place(0)}. Received: {abridge(predicted.words)}. "
                "Predict that file."
            )
    return found


def write_conll(path: str | Path, examples: Sequence[TaggedWords], predicted: Sequence[Sequence[str]]) -> None:
    """Write word, tag if there is one, and predicted tag, separated by a space, as conlleval reads them.

    Args:
        predicted: the tags predicted for each sentence.
    Raises:
        ValueError: a word contains a space, a tab or a line end, so that its line could not be read back; or a sentence
            has no words.
    """
    lines = []
    for number, (example, tags) in enumerate(zip(examples, predicted, strict=True), 1):
        columns = [example.words, tags] if example.tags is None else [example.words, example.tags, tags]
        for place, values in enumerate(zip(*columns, strict=True)):
            if any(re.search(r"[ \t\r\n]", value) for value in values):
                received = abridge(map(repr, values))
                raise ValueError(
                    f"{example.place(place)}: a column holds no space, tab or line end. Received: {received}. "
                    "Write the predictions as lines of JSON."
                )
            lines.append(" ".join(values) + "\n")
        if not example.words:
            raise ValueError(
                f"A sentence must have words to be written in columns. Received: sentence {number}, a blank line. "
                "Write the predictions as lines of JSON."
            )
        lines.append("\n")
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        file.writelines(lines)


def _group(path: str, tokens: Iterator[Token | None]) -> Iterator[TaggedWords]:
    sentence: list[Token] = []
    for token in chain(tokens, [None]):
        if token is not None:
            sentence.append(token)
        elif sentence:
            rows, words, tags = zip(*sentence, strict=True)
            yield TaggedWords(words, None if tags[0] is None else tags, path, rows)
            sentence = []


def _parse_columns(path: str, columns: list[int]) -> Iterator[Token | None]:
    """Yield a token for each word, and None at the end of a sentence."""
    width = 0
    for number, line in read_lines(path):
        values = re.split(f"[{BLANKS}]+", line.strip(BLANKS))
        if values == [""] or values[0] == DOCUMENT_MARK:
            yield None
            continue
        if not width:
            width = len(values)
            _require_columns(f"{path}, row {number}", columns, values)
        if len(values) != width:
            raise ValueError(
                f"{path}, row {number}: a row must have as many columns as the first one. "
                f"Received: {len(values)}, not {width}: {abridge(values)}. Look for a missing tag or an extra blank."
            )
        yield number, values[columns[0]], values[columns[1]] if len(columns) > 1 else None


def _require_columns(place: str, columns: list[int], values: list[str]) -> None:
    places = [column % len(values) if column < len(values) else None for column in columns]
    if None in places:
        raise ValueError(
            f"{place}: a row must have the columns asked for. Received: {len(values)} columns, {abridge(values)}, and "
            f"none of number {columns[places.index(None)]}. The first is number 0."
        )
    if len(set(places)) < len(places):
        raise ValueError(
            f"{place}: word and tag must stand in different columns. Received: both in number {places[0]} of "
            f"{len(values)}. Add the missing column, or say that the table has no labels."
        )


def _parse_jsonl(path: str, has_labels: bool) -> Iterator[TaggedWords]:
    for number, line in read_lines(path):
        place = f"{path}, row {number}"
        if not line.strip():
            if not has_labels:
                yield TaggedWords((), None, path)
            continue
        fields = parse_object(place, line)
        words = _strings(place, "words", fields)
        tags = _strings(place, "tags", fields) if has_labels else None
        if tags is not None and len(tags) != len(words):
            raise ValueError(
                f"{place}: each word must have one tag. Received: {len(words)} words, {len(tags)} tags. "
                "Correct the row."
            )
        yield TaggedWords(words, tags, path, (number,) * len(words))


def _strings(place: str, name: str, fields: dict) -> tuple[str, ...]:
    values = fields.get(name)
    if isinstance(values, list) and values and all(isinstance(value, str) and value for value in values):
        try:
            "".join(values).encode()
            if not any("\0" in value for value in values):
                return tuple(values)
        except UnicodeEncodeError:  # JSON can encode a lone surrogate, which no tokenizer accepts
            pass
    received = abridge([ascii(values)]) if name in fields else f"only {abridge(fields) or 'nothing'}"
    raise ValueError(
        f"{place}: {name!r} must be a list of texts, none of them empty or with NUL. Received: {received}. "
        "Correct or drop the row."
    )


# Span metrics of predicted tags: precision, recall and F1, overall and per type.

SPAN_METRICS = ("precision", "recall", "f1", "accuracy")


def count_spans(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str, strict: bool = False
) -> dict[str, Counts]:
    """Count the spans of each type.

    Args:
        gold: gold tags of each sentence.
        predicted: predicted tags of each sentence.
        strict: read spans as in seqeval's strict mode, instead of by conlleval's rules, which are those of seqeval's
            default mode; see `spans_of`.
    Returns:
        Type → counts, sorted by name; types that occur in `gold` or `predicted`.
    Raises:
        ValueError: the numbers of sentences or their lengths differ, or a tag is not in the scheme.
    """
    _require_pairs(gold, predicted)
    all_gold, all_predicted, correct = Counter[str](), Counter[str](), Counter[str]()
    for tags, answers in zip(gold, predicted, strict=True):
        expected, found = set(spans_of(tags, scheme, strict)), set(spans_of(answers, scheme, strict))
        all_gold.update(span.type for span in expected)
        all_predicted.update(span.type for span in found)
        correct.update(span.type for span in expected & found)
    types = sorted(all_gold | all_predicted)
    return {type_: Counts(all_gold[type_], all_predicted[type_], correct[type_]) for type_ in types}


def span_metrics(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str, strict: bool = False
) -> dict[str, float]:
    """Compute precision, recall and F1 of spans over all types, and the accuracy of words.

    Returns:
        precision, recall and f1 of spans (micro), 0 to 1; accuracy: the share of words with the correct tag.
    Raises:
        ValueError: as for `count_spans`, or there are no words.
    """
    return measure_sentences(count_sentences(gold, predicted, scheme, strict))


def count_sentences(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str, strict: bool = False
) -> np.ndarray:
    """Return the counts of each sentence for `measure_sentences`; arguments and errors as for `count_spans`.

    Returns:
        int64, (sentences, 5): gold spans, predicted spans, spans in both; words; words with the correct tag.
    """
    _require_pairs(gold, predicted)
    counts = np.zeros((len(gold), 5), dtype=np.int64)
    for row, tags, answers in zip(counts, gold, predicted, strict=True):
        expected, found = set(spans_of(tags, scheme, strict)), set(spans_of(answers, scheme, strict))
        same = sum(map(str.__eq__, tags, answers))
        row[:] = len(expected), len(found), len(expected & found), len(tags), same
    return counts


def measure_sentences(counts: np.ndarray) -> dict[str, float]:
    """Compute the metrics of `span_metrics` from the counts of sentences."""
    *of_spans, words, same = counts.sum(axis=0).tolist()
    total = Counts(*of_spans)
    if not words:
        raise ValueError("Metrics need at least one word. Received: none. Read the table first.")
    return {"precision": total.precision, "recall": total.recall, "f1": total.f1, "accuracy": same / words}


def _require_pairs(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> None:
    if len(gold) != len(predicted):
        raise ValueError(
            f"Each sentence must have a prediction. Received: {len(gold)} sentences, {len(predicted)} predictions. "
            "Predict every sentence once."
        )
    for number, (tags, answers) in enumerate(zip(gold, predicted, strict=True), 1):
        if len(tags) != len(answers):
            raise ValueError(
                f"Each word must have a predicted tag. Received: {len(tags)} words, {len(answers)} tags in sentence "
                f"{number}. Decode the predictions with the features that the model read."
            )

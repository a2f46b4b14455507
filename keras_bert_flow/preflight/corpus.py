"""Check the beginning of a corpus, to refuse an unusable one without reading all of it."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from keras_bert_flow.config.corpus import CorpusConfig
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.preflight.limited import EnoughError, LimitedCounts
from keras_bert_flow.text.corpus.documents import Document, ReadingRule, read_documents
from keras_bert_flow.text.corpus.inputs import PARQUET, open_input
from keras_bert_flow.text.corpus.parquet import open_table
from keras_bert_flow.text.corpus.rejected import advise, check_rejected, describe_rejected, explain_lack, rejected_bytes
from keras_bert_flow.text.corpus.unpacking import PACKED_SUFFIXES
from keras_bert_flow.text.objectives.registry import find_objective
from keras_bert_flow.text.pool import held_out_choice

MOST_BYTES = 16_000_000  # of text to read, in a fraction of a second


def check_columns(corpus: CorpusConfig, files: Sequence[str]) -> None:
    """Raise ValueError unless each Parquet file has the text column."""
    for path in files:
        if path.endswith(PARQUET):
            with open_input(path) as file:
                open_table(file, path, corpus.text_field)


def check_text(config: PipelineConfig, files: Sequence[str], makes_records: bool) -> None:
    """Check that a corpus has text, and enough documents to make records.

    A corpus larger than `MOST_BYTES` is judged by its beginning, and passes if that is inconclusive.

    Args:
        files: all files of the corpus, on this machine.
    Raises:
        ValueError: too much is rejected, there are too few documents, or a file is damaged.
    """
    counts = LimitedCounts(MOST_BYTES)
    rejecting: list[tuple[str, str, int]] = []
    objective = find_objective(config.records.objective)
    needed, reason = (objective.needed_documents, objective.needed) if makes_records else (1, "text")
    is_held_out = held_out_choice(config.records.held_out_fraction, config.seed)
    found: set[str] = set()
    try:
        for document in _read(config.corpus, files, counts, rejecting):
            is_long = len(document.sentences) >= objective.least_sentences
            if not makes_records or (is_long and not is_held_out(document.id)):
                found.add(document.id)
            if len(found) >= needed:
                return
    except EnoughError:
        _check_beginning(config.corpus, files, counts)
        return
    check_rejected(counts, config.corpus.max_rejected_share, rejecting)
    facts, remedy = explain_lack(counts)
    raise ValueError(
        f"A corpus must hold {reason}. Received: {', '.join(config.corpus.input)}, with {len(found)} of "
        f"{counts['documents']} documents to use{facts and f'; {facts}'}. {remedy}"
    )


def _read(
    corpus: CorpusConfig, files: Sequence[str], counts: Counter, rejecting: list[tuple[str, str, int]]
) -> Iterator[Document]:
    """Yield documents, and append (reason, path, rejected bytes) to `rejecting` for each file read to its end."""
    rule = ReadingRule(corpus.text_field, corpus.lines == "paragraphs", corpus.max_line_bytes, corpus.strict)
    for path in files:
        before = rejected_bytes(counts)
        yield from read_documents(path, rule, counts)
        rejecting += [
            (reason, path, size - before.get(reason, 0))
            for reason, size in rejected_bytes(counts).items()
            if size > before.get(reason, 0)
        ]


def _check_beginning(corpus: CorpusConfig, files: Sequence[str], counts: Counter) -> None:
    """Raise ValueError if more bytes of the beginning are rejected than are allowed for all files together."""
    if any(path.endswith((*PACKED_SUFFIXES, PARQUET)) for path in files):  # their uncompressed size is not known
        return
    allowed = corpus.max_rejected_share * sum(Path(path).stat().st_size for path in files)
    if sum(rejected_bytes(counts).values()) > allowed:
        raise ValueError(
            f"At most {100 * corpus.max_rejected_share:.4g} % of the bytes of a corpus may be rejected, here "
            f"{allowed:,.0f}. Received: {describe_rejected(counts)}, in its beginning alone. {advise(counts)} Or allow "
            "it by --max-rejected-share=1 (corpus.max_rejected_share)."
        )

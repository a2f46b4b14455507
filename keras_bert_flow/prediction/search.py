"""Semantic search in the lines of a file."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_bert_flow.input_states import hold
from keras_bert_flow.local_paths import check_local
from keras_bert_flow.prediction.embedding import Embedder
from keras_bert_flow.prediction.line_vectors import load_line_vectors
from keras_bert_flow.prediction.lines import list_items, read_until_mistake
from keras_bert_flow.prediction.nearest import find_nearest, unit_length

_logger = logging.getLogger(__name__)


class SemanticSearch:
    """Semantic search: find the lines of a file nearest to a query by cosine, comparing all of them.

    Args:
        model: any model directory; see `Embedder`.
        lines: a file, UTF-8, one text per line; blank lines are skipped.
        index: a folder for the vectors, built if it does not exist, else read. The vectors are then memory-mapped;
            without it they are all held in memory.
        pooling: as for `Embedder`.
        follow: takes the batches of lines and yields them again, to show progress.
    Raises:
        FileNotFoundError: the model or the file is missing.
        ValueError: the file has no text or is not UTF-8; the index is of other lines or another model; the file or the
            model changes meanwhile.
    """

    def __init__(
        self,
        model: str | Path,
        lines: str | Path,
        index: str | Path | None = None,
        pooling: str | None = None,
        follow: Callable = iter,
    ):
        if index is not None:
            check_local(index, "The index")
        held = hold(lines), hold(model)
        self.embedder = Embedder(model, pooling, normalize=True)
        if self.embedder.similarity != "cosine":
            _logger.warning("%s: made for the similarity %s; ranked by cosine.", model, self.embedder.similarity)
        self.lines = load_line_vectors(lines, self.embedder, model, index, follow, *held)

    def search(self, queries: Sequence[str], top: int = 5) -> list[dict[str, Any]]:
        """Find the `top` nearest lines for each query; ties are in the order of the file.

        Returns:
            For each query {"query", "hits"}; the hits are {"line", "score", "text"}, nearest first: the number of the
            line, from 1, the cosine, and the line without surrounding blanks.
        """
        queries = list(list_items(queries))
        vectors = unit_length(self.embedder.embed(queries))
        rows, cosines = find_nearest(vectors, self.lines.vectors, top)
        return [
            {
                "query": query,
                "hits": [
                    {"line": line, "score": score, "text": text}
                    for line, score, text in zip(
                        self.lines.lines[found, 0].tolist(), scores.tolist(), self.lines.read(found), strict=True
                    )
                ],
            }
            for query, found, scores in zip(queries, rows, cosines, strict=True)
        ]

    def search_chunks(
        self, chunks: Iterable[tuple[int, Iterable[str]]], top: int = 5
    ) -> Iterator[list[dict[str, Any]]]:
        """Yield the results for each chunk of `read_waiting_texts`.

        Raises:
            ValueError: a line is not UTF-8. The queries before it are answered first.
        """
        for _, texts in chunks:
            queries, mistake = read_until_mistake(text.strip() for text in texts)
            if queries:
                yield self.search(queries, top)
            if mistake is not None:
                raise mistake

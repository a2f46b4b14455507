"""Read a corpus as a collection of documents; each worker reads whole files, one document at a time."""

from collections import Counter
from collections.abc import Iterator

import apache_beam as beam

from beam_jobs.results import tag_counters
from keras_bert_flow.config import CorpusConfig
from keras_bert_flow.text.documents import Document, ReadingRule, read_documents
from keras_bert_flow.text.inputs import find_inputs


class ReadCorpus(beam.PTransform):
    """Read every document of a corpus.

    Outputs `documents` and `counters`. The number of bundles, their order and the names of the files do not show in a
    document or its id.

    Args:
        corpus: where the text is and how its lines are read.
    """

    def __init__(self, corpus: CorpusConfig):
        super().__init__()
        self._paths = find_inputs(corpus.input)
        self._rule = ReadingRule(
            json_field=corpus.json_field,
            split_lines=corpus.lines == "paragraphs",
            max_line_bytes=corpus.max_line_bytes,
            strict=corpus.strict,
        )

    def expand(self, pipeline):  # returns two collections, for which Beam has no type hint
        return (
            pipeline
            | "ListFiles" >> beam.Create(self._paths)
            | "SpreadFiles" >> beam.Reshuffle()
            | "ReadDocuments" >> beam.ParDo(ReadDocuments(self._rule)).with_outputs("counters", main="documents")
        )


class ReadDocuments(beam.DoFn):
    """Read the documents of one file."""

    def __init__(self, rule: ReadingRule):
        self._rule = rule

    def process(self, path: str) -> Iterator[Document]:
        counts: Counter = Counter()

        def count(name: str) -> None:
            counts[name] += 1

        yield from read_documents(path, self._rule, count)
        yield from tag_counters(counts.items())

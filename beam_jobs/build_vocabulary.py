"""Learn a WordPiece vocabulary from any amount of text: Beam counts words, the learner merges pieces.

documents ──► words ──► counts ──► vocab.txt
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import apache_beam as beam

from beam_jobs.reading import ReadCorpus, tell_rejected
from beam_jobs.results import COUNTERS, WriteResults, read_results, tag_counters
from beam_jobs.running import job_folder, run_pipeline
from beam_jobs.storage import BeamStorage
from keras_bert_flow.config import CorpusConfig, VocabularyConfig
from keras_bert_flow.keys import corpus_digests, vocabulary_key
from keras_bert_flow.records.publish import Contents, publish
from keras_bert_flow.text.documents import Document
from keras_bert_flow.text.learner import learn_vocabulary
from keras_bert_flow.text.normalization import normalize_text
from keras_bert_flow.text.vocabulary import read_vocabulary, write_vocabulary

VOCABULARY_FILE = "vocab.txt"


def build_vocabulary(
    corpus: CorpusConfig, vocabulary: VocabularyConfig, output: str | Path, options: Sequence[str] = ()
) -> Path:
    """Publish a folder with `vocab.txt` and its manifest; at once where it is already there.

    Args:
        corpus: the text.
        vocabulary: size and case; where it names a file, that file is checked and copied.
        output: the folder.
        options: Beam's options.
    Raises:
        FileNotFoundError: an input is missing.
        ValueError: the corpus holds no word, or more characters than the vocabulary has room for.
    """
    storage = BeamStorage(options)

    def build(work: Path) -> Contents:
        if vocabulary.file is None:
            with job_folder(work) as folder:
                word_counts, counters = count_words(corpus, vocabulary.cased, folder, options)
            pieces = learn_vocabulary(word_counts, vocabulary.size, vocabulary.min_character_count)
        else:
            pieces, counters = read_vocabulary(vocabulary.file), {}
        write_vocabulary(work / VOCABULARY_FILE, pieces)
        inputs = corpus_digests(corpus, storage) if vocabulary.file is None else {}
        return Contents(vocabulary.model_dump(), inputs, counters)

    return publish(output, "vocabulary", vocabulary_key(corpus, vocabulary, storage), build)


def count_words(
    corpus: CorpusConfig, cased: bool, folder: Path, options: Sequence[str] = ()
) -> tuple[dict[str, int], dict[str, int]]:
    """Count the words of a corpus, and return (counts by word, counters of the job)."""

    def build(pipeline: beam.Pipeline) -> None:
        read = pipeline | "ReadCorpus" >> ReadCorpus(corpus, BeamStorage(options))
        words = read.documents | "SplitWords" >> beam.ParDo(SplitWords(cased)).with_outputs(COUNTERS, main="words")
        counts = words.words | "CountWords" >> beam.CombinePerKey(sum)
        counters = (read.counters, words[COUNTERS]) | "FlattenCounters" >> beam.Flatten()
        _ = {"results": counts, COUNTERS: counters} | "WriteCounts" >> WriteResults(folder)

    run_pipeline(build, options, folder)
    results, counters = read_results(folder)
    counters = tell_rejected(counters, folder)
    word_counts = dict(results)
    if not word_counts:
        raise ValueError(
            f"A corpus must hold text. Received: {', '.join(corpus.input)}, without a word. Check the input."
        )
    return word_counts, counters | {"distinct_words": len(word_counts)}


class SplitWords(beam.DoFn):
    """Emit (word, count) for the distinct words of a document."""

    def __init__(self, cased: bool):
        self._cased = cased

    def process(self, document: Document) -> Iterator[tuple[str, int]]:
        counts: Counter = Counter()
        for sentence in document.sentences:
            counts.update(normalize_text(sentence, self._cased).split())
        yield from counts.items()
        yield from tag_counters([("sentences", len(document.sentences)), ("words", counts.total())])

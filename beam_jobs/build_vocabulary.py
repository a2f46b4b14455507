"""Learn a WordPiece vocabulary from any amount of text: Beam counts words, the learner chooses pieces.

documents ──► counts of a bundle ──► counts ──► vocab.txt
"""

import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

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
from keras_bert_flow.text.vocabulary import VOCABULARY_FILE, read_vocabulary, write_vocabulary

MAX_COUNTED_WORDS = 200_000  # distinct words that a worker counts before it hands them on, about 30 MB
BUCKETS = 256  # into which distinct words are dealt


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
            pieces = learn_vocabulary(
                word_counts, vocabulary.size, vocabulary.min_character_count, vocabulary.max_cjk_characters
            )
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
    whole_lines = corpus.model_copy(update={"lines": "sentences"})  # where a sentence ends is no matter to its words

    def build(pipeline: beam.Pipeline) -> None:
        read = pipeline | "ReadCorpus" >> ReadCorpus(whole_lines, folder, BeamStorage(options))
        count = beam.ParDo(CountInBundles(cased)).with_outputs(COUNTERS, main="words")
        words = read.documents | "CountInBundles" >> count
        counts = words.words | "GroupBuckets" >> beam.GroupByKey() | "AddCounts" >> beam.Map(add_counts)
        counters = (read.counters, words[COUNTERS]) | "FlattenCounters" >> beam.Flatten()
        _ = {"results": counts, COUNTERS: counters} | "WriteCounts" >> WriteResults(folder)

    run_pipeline(build, options, folder)
    results, counters = read_results(folder)
    counters = tell_rejected(counters, folder)
    word_counts = {word: count for bucket in results for word, count in bucket.items()}
    if not word_counts:
        raise ValueError(
            f"A corpus must hold text. Received: {', '.join(corpus.input)}, without a word. Check the input."
        )
    return word_counts, counters | {"distinct_words": len(word_counts)}


class CountInBundles(beam.DoFn):
    """Count the words of a bundle, and emit (bucket, counts by word) at its end, or as often as the table is full.

    A word is always in the same one of 256 buckets. Words that travel in company cost the runner little; words that
    travel alone would cost it more than counting them does.
    """

    def __init__(self, cased: bool):
        self._cased = cased

    def start_bundle(self) -> None:
        self._counts: Counter = Counter()

    def process(self, document: Document) -> Iterator[tuple[int, dict[str, int]]]:
        words = normalize_text("\n".join(document.sentences), self._cased).split()
        self._counts.update(words)
        yield from tag_counters([("words", len(words))])
        if len(self._counts) > MAX_COUNTED_WORDS:
            yield from self._empty()

    def finish_bundle(self) -> Iterator[WindowedValue]:
        for bucket in self._empty():
            yield GlobalWindows.windowed_value(bucket)

    def _empty(self) -> list[tuple[int, dict[str, int]]]:
        buckets: defaultdict[int, dict[str, int]] = defaultdict(dict)
        for word, count in self._counts.items():
            buckets[zlib.crc32(word.encode()) % BUCKETS][word] = count
        self._counts.clear()
        return list(buckets.items())


def add_counts(bucket: tuple[int, Iterable[dict[str, int]]]) -> dict[str, int]:
    """Add up what the bundles counted in one bucket."""
    total: Counter = Counter()
    for counts in bucket[1]:
        total.update(counts)
    return dict(total)

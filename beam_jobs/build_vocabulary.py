"""Beam job that learns a vocabulary from any amount of text: Beam counts words, the learner chooses pieces.

documents ──► sorted counts per bundle ──► counts ──► vocab.txt or tokenizer.json
"""

import itertools
import logging
import struct
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import apache_beam as beam
from apache_beam.transforms.window import GlobalWindows
from apache_beam.utils.windowed_value import WindowedValue

from beam_jobs.exchange import Items, choose_exchange
from beam_jobs.publishing import JobFolders, check_place_of, publish_result, read_published
from beam_jobs.reading import (
    COUNTERS,
    READING,
    CountingDoFn,
    ReadCorpus,
    Texts,
    WriteResults,
    name_inputs,
    read_results,
    tell_ignored,
    tell_rejected,
)
from beam_jobs.running import run_pipeline
from beam_jobs.storage import BeamStorage, new_place, open_bytes
from keras_bert_flow.config.text import CorpusConfig, VocabularyConfig
from keras_bert_flow.console.job_progress import DOCUMENTS, JobPart, note, plan_parts
from keras_bert_flow.files.inputs import hold
from keras_bert_flow.results.publishing import Contents
from keras_bert_flow.results.stages.data import VOCABULARY, describe_vocabulary, vocabulary_key
from keras_bert_flow.results.stages.keys import corpus_digests, hold_corpus
from keras_bert_flow.text.corpus.lines import check_rejected, explain_lack
from keras_bert_flow.text.learner import MAX_PLACES, WordLimit, add_histograms, count_places
from keras_bert_flow.text.tokenizers.files import list_tokenizer_files, read_tokenizer_file
from keras_bert_flow.text.tokenizers.learning import Words, choose_words, learn_tokenizer
from keras_bert_flow.text.tokenizers.loaded import LoadedTokenizer
from keras_bert_flow.text.tokenizers.normalization import MAX_REMEMBERED_CHARACTERS, is_han
from keras_bert_flow.text.tokenizers.tokenizer import count_stripped, describe_lost
from keras_bert_flow.text.vocabulary import BPE, CONTINUATION, VOCABULARY_FILE, write_vocabulary

COUNTING, CHOOSING = JobPart("counting", DOCUMENTS), JobPart("choosing pieces")
MAX_COUNTED = 200_000  # distinct words and space-separated texts that a worker counts before it emits them, 30 MB
MAX_LONG_CHARACTERS = 4_000_000  # of long words
BUCKETS = 256  # over which distinct words are distributed
_FILE = "counts"  # with the words of a bucket
_COUNT = struct.Struct(">xQ")  # after a word; no word has a zero byte, so sorting puts a word's counts together


def build_vocabulary(
    corpus: CorpusConfig, vocabulary: VocabularyConfig, output: str | Path, options: Sequence[str] = ()
) -> str | Path:
    """Publish a folder with `vocab.txt` or `tokenizer.json` and its manifest, unless it already exists.

    Args:
        corpus: the text.
        vocabulary: kind, size and case; if it names a file, which may be a `tokenizer.json`, that is checked and
            copied.
        output: the folder.
        options: Beam's options.
    Raises:
        FileNotFoundError: an input is missing.
        ValueError: the corpus holds no word, or more distinct characters than the vocabulary has room for, or too much
            of its text was rejected.
    """
    check_place_of(output)
    storage = BeamStorage(options)
    if vocabulary.file is None:
        files, inputs = hold_corpus(corpus, storage)
    else:
        files, inputs = corpus, hold(*list_tokenizer_files(vocabulary.file))

    def build(folders: JobFolders) -> Contents:
        if vocabulary.file is not None:
            read_tokenizer_file(vocabulary.file, vocabulary.cased).write(folders.work)
            return Contents(describe_vocabulary(vocabulary), {}, {})
        plan_parts(READING, COUNTING, CHOOSING)
        tell_ignored(corpus, storage)
        word_counts, counters = count_words(files, choose_words(vocabulary), folders, options)
        note(CHOOSING, 0)
        tokenizer = learn_tokenizer(word_counts, vocabulary)
        if vocabulary.kind != BPE:  # of which bytes are pieces
            counters |= count_left_out(word_counts, tokenizer.pieces, counters)
            _tell_lost(counters, vocabulary)
        if isinstance(tokenizer, LoadedTokenizer):
            tokenizer.write(folders.work)
        else:
            write_vocabulary(folders.work / VOCABULARY_FILE, tokenizer.pieces)
        return Contents(describe_vocabulary(vocabulary), corpus_digests(files, storage), counters)

    key = vocabulary_key(files, vocabulary, storage)
    folder = publish_result(output, VOCABULARY, key, build, options, inputs)
    check_rejected(read_published(folder).counters, corpus.max_rejected_share)  # an old one may have a looser limit
    return folder


def count_words(
    corpus: CorpusConfig, words: Words, folders: JobFolders, options: Sequence[str] = ()
) -> tuple[dict[str, int], dict[str, int]]:
    """Count the words of a corpus, and return (counts by word, counters of the job).

    If there are more distinct words than fit `learner.MAX_PLACES`, the rarest are dropped, counted and logged.

    Args:
        words: how text is divided into words.
    """

    def build(pipeline: beam.Pipeline) -> None:
        exchange = choose_exchange(options, folders.scratch, folders.is_shared)
        read = pipeline | "ReadCorpus" >> ReadCorpus(corpus, exchange, BeamStorage(options))
        count = beam.ParDo(CountInBundles(words)).with_outputs(COUNTERS, main="words")
        counted = read.texts | "CountInBundles" >> count
        buckets = pipeline | "ListBuckets" >> beam.Create(range(BUCKETS))
        add = exchange.sort("words", add_counts, folders.place, divide=lambda *_: b"", lift=LiftCounts())
        counts = {"items": counted.words, "buckets": buckets} | "AddCounts" >> add
        counters = (read.counters, counted[COUNTERS]) | "FlattenCounters" >> beam.Flatten()
        _ = {"results": counts, COUNTERS: counters} | "WriteCounts" >> WriteResults(folders.place)

    run_pipeline(build, options, folders.scratch)
    results, counters = read_results(folders.place)
    counters = tell_rejected(counters, folders.work, corpus.max_rejected_share)
    word_counts, of_words = read_counts(results, MAX_PLACES)
    if not of_words["distinct_words"]:
        facts, remedy = explain_lack(counters | {"documents_without_tokens": counters.get("documents", 0)})
        raise ValueError(
            f"A corpus must hold text. Received: {name_inputs(corpus.input)}, without a word{facts and f'; {facts}'}. "
            f"{remedy}"
        )
    counters |= of_words
    _tell_dropped(counters)
    return word_counts, counters


class CountInBundles(CountingDoFn):
    """Count the words of a bundle, and emit the counts by bucket at its end, and whenever the table is full.

    A word is always in the same one of 256 buckets. A text between spaces is divided into words once, when the table is
    emitted, since text repeats its words.

    Args:
        words: how text is divided into words.
    """

    def __init__(self, words: Words):
        self._divide = words

    def start_bundle(self) -> None:
        super().start_bundle()
        self._texts: Counter[str] = Counter()
        self._words: Counter[str] = Counter()
        self._long_characters = 0

    def process(self, texts: Texts) -> Iterator[Items]:
        for lines in texts:
            parts = self._divide.split(" ".join(lines))
            if max(map(len, parts), default=0) > MAX_REMEMBERED_CHARACTERS:
                self._count_long([part for part in parts if len(part) > MAX_REMEMBERED_CHARACTERS])
                parts = [part for part in parts if len(part) <= MAX_REMEMBERED_CHARACTERS]
            self._texts.update(parts)
            if len(self._texts) + len(self._words) > MAX_COUNTED or self._long_characters > MAX_LONG_CHARACTERS:
                yield from self._take()
        note(COUNTING, len(texts))

    def finish_bundle(self) -> Iterator[WindowedValue | beam.pvalue.TaggedOutput]:
        yield from map(GlobalWindows.windowed_value, self._take())
        yield from super().finish_bundle()

    def _count_long(self, texts: Sequence[str]) -> None:
        """Count the words of long texts, such as Chinese sentences, which hardly ever occur again."""
        for text in texts:
            words = self._divide(text)
            self._words.update(words)
            self._count_characters(text, 1)
            self._long_characters += sum(len(word) for word in words if len(word) > MAX_REMEMBERED_CHARACTERS)

    def _count_characters(self, text: str, count: int) -> None:
        self.counts["characters"] += len(text) * count
        if self._divide.strips_accents and (stripped := count_stripped(text)):
            self.counts["stripped_characters"] += stripped * count

    def _take(self) -> Iterator[Items]:
        """Yield the counts by bucket, and clear the table."""
        for text, count in self._texts.items():
            for word in self._divide(text):
                self._words[word] += count
            self._count_characters(text, count)
        self.counts["words"] += self._words.total()
        buckets: defaultdict[int, list[bytes]] = defaultdict(list)
        for word, count in self._words.items():
            name = word.encode()
            bucket, items = place_count(name, count)
            buckets[bucket] += items
        yield from buckets.items()
        self._texts.clear()
        self._words.clear()
        self._long_characters = 0


class LiftCounts(beam.PTransform):
    """Sum the counts of each word before they are shuffled."""

    def expand(self, items):
        return (
            items
            | "NameCounts" >> beam.FlatMap(name_counts)
            | "SumCounts" >> beam.CombinePerKey(sum)
            | "PlaceCounts" >> beam.MapTuple(place_count)
        )


def name_counts(pair: Items) -> Iterator[tuple[bytes, int]]:
    """Yield each word of a bucket, as UTF-8, and its count."""
    for item in pair[1]:
        yield item[: -_COUNT.size], _COUNT.unpack(item[-_COUNT.size :])[0]


def place_count(name: bytes, count: int) -> Items:
    """Return the bucket of a word, given as UTF-8, and the item with its count."""
    return zlib.crc32(name) % BUCKETS, [name + _COUNT.pack(count)]


def add_counts(bucket: int, items: Iterator[bytes], folder: str) -> Iterator[tuple[str, list[tuple[int, int]]]]:
    """Write a file with the words of a bucket and their total counts; yield its path and its histogram."""
    histogram: Counter[int] = Counter()
    with (
        new_place(folder) as (local, place),
        open(local / _FILE, "w", encoding="utf-8", newline="\n") as file,
    ):
        for name, group in itertools.groupby(items, key=lambda item: item[: -_COUNT.size]):
            word, count = name.decode(), sum(_COUNT.unpack(item[-_COUNT.size :])[0] for item in group)
            file.write(f"{word} {count}\n")
            histogram[count] += count_places(word)
    yield f"{place}/{_FILE}", sorted(histogram.items())


def read_counts(
    buckets: Iterable[tuple[str, Sequence[tuple[int, int]]]], most: int
) -> tuple[dict[str, int], dict[str, int]]:
    """Read counts by word, for at most about `most` places of words, and count distinct, dropped and long words.

    Characters of dropped words still count, as words of one character, so the vocabulary has each of them; those of
    words that are too long for any vocabulary do not.
    """
    files, histograms = zip(*buckets, strict=True)
    keep = WordLimit(add_histograms(map(dict, histograms)), most)
    word_counts: dict[str, int] = {}
    characters: Counter[str] = Counter()
    counters: Counter[str] = Counter({"distinct_words": 0})
    for path in files:
        with open_bytes(path) as lines:
            for line in lines:
                word, _, number = line.decode().rpartition(" ")
                count = int(number)
                counters["distinct_words"] += 1
                if not count_places(word):  # the learner ignores such words, which may be long
                    counters.update({"long_words": count, "long_word_characters": len(word) * count})
                    continue
                if keep(word, count):
                    word_counts[word] = count
                    continue
                counters.update({"distinct_words_dropped": 1, "words_dropped": count})
                for character in word:
                    characters[character] += count
    for character, count in characters.items():
        word_counts[character] = word_counts.get(character, 0) + count
    return word_counts, dict(counters)


def count_left_out(
    word_counts: Mapping[str, int], pieces: Sequence[str], counters: Mapping[str, int]
) -> dict[str, int]:
    """Count the characters that the learner left out, and `unknown_characters`, those of words that become [UNK].

    Args:
        word_counts: what the vocabulary was learnt from.
        pieces: the vocabulary, in which every other character is a piece.
        counters: of the job, with those of long words.
    """
    known = {piece.removeprefix(CONTINUATION) for piece in pieces if len(piece) <= len(CONTINUATION) + 1}
    unknown = {word: count for word, count in word_counts.items() if not known.issuperset(word)}
    lacking = set().union(*unknown) - known
    han = sum(map(is_han, lacking))
    counts = {
        "unknown_characters": sum(len(word) * count for word, count in unknown.items())
        + counters.get("long_word_characters", 0),
        "distinct_characters_left_out": len(lacking),
        "distinct_han": han and han + sum(len(piece) == 1 and is_han(piece) for piece in pieces),
        "distinct_han_left_out": han,
    }
    return {name: count for name, count in counts.items() if count}


def _tell_lost(counters: Mapping[str, int], vocabulary: VocabularyConfig) -> None:
    """Log how many characters of the corpus the vocabulary cannot encode, and what would change that."""
    remedies = []
    if (han := counters.get("distinct_han_left_out", 0)) and vocabulary.min_character_count == 1:
        remedies.append(
            f"{han:,} of {counters['distinct_han']:,} Han characters have no piece: set "
            f"vocabulary.max_cjk_characters={counters['distinct_han']}, and vocabulary.size={vocabulary.size + han} or "
            "more."
        )
    elif left_out := counters.get("distinct_characters_left_out"):
        remedies.append(
            f"{left_out:,} characters are rarer than vocabulary.min_character_count={vocabulary.min_character_count}"
            f"{f', or Han beyond max_cjk_characters={vocabulary.max_cjk_characters}' if han else ''}: lower it"
            f"{', or raise that' if han else ''}."
        )
    for line in describe_lost(counters, "the corpus", " ".join(remedies)):
        logging.getLogger("keras_bert_flow").warning("%s", line)


def _tell_dropped(counters: Mapping[str, int]) -> None:
    if dropped := counters.get("distinct_words_dropped"):
        logging.getLogger("keras_bert_flow").warning(
            "The vocabulary is learnt from the most frequent of %s distinct words: the other %s, %.2f %% of all words, "
            "do not fit the limit of %s characters. Their characters still count.",
            f"{counters['distinct_words']:,}",
            f"{dropped:,}",
            100 * counters["words_dropped"] / counters["words"],
            f"{MAX_PLACES:,}",
        )

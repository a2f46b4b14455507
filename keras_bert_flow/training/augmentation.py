"""Augment the training table of a task: copies of its rows in which words are replaced.

A word that is one piece of the vocabulary is replaced by what a masked LM predicts in its place, a word of several
pieces by words whose token embeddings are near. All words are English by default: `STOP_WORDS` are never replaced.

Source: Jiao et al. 2020 (TinyBERT), section 3.2 and algorithm 1; arXiv:1909.10351.
"""

import json
import re
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from string import ascii_lowercase, ascii_uppercase
from typing import Any, TextIO

import numpy as np

from keras_bert_flow.backends.runtime import arithmetic
from keras_bert_flow.backends.values import read_variable
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.console.job_progress import JobPart, expect, note, plan_parts
from keras_bert_flow.conversion.adapters import check_whole
from keras_bert_flow.conversion.model_directory import load_pretrainer
from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.data.tasks import BATCH_POSITIONS, fit_widths, halve_widths, make_inputs, predict_batches
from keras_bert_flow.files.inputs import hold
from keras_bert_flow.files.paths import check_local
from keras_bert_flow.models.pretraining.masked_lm import MaskedLM
from keras_bert_flow.results.publishing import Contents, publish
from keras_bert_flow.results.stages.tasks import (
    AUGMENTATION,
    ROWS,
    TABLE,
    TABLE_ROWS,
    augmentation_inputs,
    augmentation_key,
)
from keras_bert_flow.stores.fetching import fetch
from keras_bert_flow.tasks.core.task import Features, join_texts
from keras_bert_flow.tasks.core.texts import TextExample
from keras_bert_flow.tasks.registry import make_task
from keras_bert_flow.text.rows import keyed_generator
from keras_bert_flow.text.stop_words import STOP_WORDS, read_stop_words
from keras_bert_flow.text.tokenizers.tokenizer import Tokenizer, find_pieces
from keras_bert_flow.training.finetuning.task_data import fetch_tables, read_training

ROWS_AT_ONCE = 1024  # of the table; the words of this many are in memory
WORDS_AT_ONCE = 64  # compared with the whole vocabulary in one product
AUGMENTING = JobPart("replacing words", "rows")
_BEFORE, _AFTER = r"(?<![^\W_])", r"(?![^\W_])"  # around a word: no other letter or digit
_UNUSED = re.compile(r"\[unused\d+\]")  # pieces of published vocabularies that no text has


# Find the words of a text, and what may be put in their place.


@dataclass(frozen=True)
class Word:
    """A word of one of several texts.

    Attributes:
        text: number of the text.
        start, end: its place there, in characters.
        spelling: as candidates are spelt.
        ids: of its pieces.
        position: of its first piece in a row that begins with the text.
    """

    text: int
    start: int
    end: int
    spelling: str
    ids: tuple[int, ...]
    position: int


@dataclass(frozen=True)
class Slot:
    """A word of a text and its candidates: `text[start:end]` may become each of them."""

    start: int
    end: int
    candidates: tuple[str, ...]


@dataclass(frozen=True)
class MaskedWords:
    """Pairs of a text with itself, each once per word that is masked in the first.

    Attributes:
        pairs: one row per text.
        texts, positions: int, (words,). The text of each word, and its position in the row.
    """

    pairs: Features
    texts: np.ndarray
    positions: np.ndarray

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each row, int, (words,)."""
        return self.pairs.lengths[self.texts]


class WordProposer:
    """Propose other words for the words of a text.

    A word is a run of the letters a to z, in either case if the tokenizer ignores case, that is not a stop word. Of a
    word that is one piece, the candidates are the most likely pieces in its place, where the model reads the text with
    the word masked and then the text as it is; of a word of several pieces, the pieces whose token embeddings have the
    largest cosine with the mean of those of the word. Candidates are whole words of the vocabulary, and not the word
    itself. Words beyond the last position of the model have none, nor have those that the vocabulary lacks.

    Differences from the authors' code: the nearest words are those of the model's own embeddings in place of GloVe
    vectors, and parts of words are skipped before the most likely pieces are chosen rather than after.

    Args:
        folder: a model directory with a masked-LM head.
        candidates: maximum number for each word.
        stop_words: words that have none, in lower case.
        batch_positions: rows times width of a batch. The candidates do not depend on it, except by rounding.
    Raises:
        FileNotFoundError, ValueError: the model is missing or damaged, or has no such head.
    """

    def __init__(
        self,
        folder: Path,
        candidates: int = 15,
        stop_words: Collection[str] = STOP_WORDS,
        batch_positions: int = BATCH_POSITIONS,
    ):
        self.model, new_layers = load_pretrainer(MaskedLM, folder)
        if new_layers:
            raise ValueError(
                f"A model that proposes words must have a masked-LM head. Received: {folder}, without one. Take what "
                "`kbf pretrain` made of the objective mlm, a BertForMaskedLM or a BertForPreTraining."
            )
        self.tokenizer = read_tokenizer(folder)
        self.count, self.batch_positions = candidates, batch_positions
        self.max_positions = self.model.backbone.max_positions
        self._stop_words = stop_words
        self._ignores_case = ignores_case(self.tokenizer)
        letters = "[A-Za-z]+" if self._ignores_case else "[a-z]+"
        self._pattern = re.compile(f"{_BEFORE}{letters}{_AFTER}")
        spelt = list_words(self.tokenizer)
        self._word_ids, self._words = np.array([*spelt], np.int64), [*spelt.values()]  # (whole words,)
        self._places = defaultdict(list)  # word → its places in these
        for place, word in enumerate(self._words):
            self._places[word].append(place)
        self._table = read_variable(self.model.backbone.token_embedding.embeddings).astype(np.float32)
        self._unit = scale_to_unit(self._table[self._word_ids])  # (whole words, embedding)
        self._nearest: dict[tuple[str, tuple[int, ...]], tuple[str, ...]] = {}

    def propose(self, texts: Sequence[str]) -> list[list[Slot]]:
        """Return the words of each text that have candidates, in the order of the text."""
        encoded = [self.tokenizer.encode_with_offsets(text) for text in texts]
        words = [word for number, text in enumerate(texts) for word in self._find_words(number, text, *encoded[number])]
        whole = [word for word in words if len(word.ids) == 1]
        likely = self._find_likely([ids for ids, _, _ in encoded], whole)
        self._find_nearest({(word.spelling, word.ids) for word in words if len(word.ids) > 1})
        slots: list[list[Slot]] = [[] for _ in texts]
        for word in words:
            found = next(likely) if len(word.ids) == 1 else self._nearest[word.spelling, word.ids]
            if found:
                slots[word.text].append(Slot(word.start, word.end, found))
        return slots

    def _find_words(
        self, number: int, text: str, ids: np.ndarray, starts: np.ndarray, ends: np.ndarray
    ) -> Iterator[Word]:
        """Yield the words of a text that are to have candidates."""
        for match in self._pattern.finditer(text):
            start, end = match.span()
            spelling = match[0].lower() if self._ignores_case else match[0]
            pieces = None if spelling.lower() in self._stop_words else find_pieces(starts, ends, start, end)
            if pieces is None:
                continue
            first, last = pieces
            found = tuple(ids[first : last + 1].tolist())
            is_apart = (starts[first], ends[last]) == (start, end)  # its pieces hold nothing else
            if is_apart and self.tokenizer.unk_id not in found and last + 1 < self.max_positions:
                yield Word(number, start, end, spelling, found, first + 1)  # after [CLS]

    def _find_likely(self, encoded: Sequence[np.ndarray], words: Sequence[Word]) -> Iterator[tuple[str, ...]]:
        """Return the most likely pieces in the place of each word, which is masked in a pair of its text with itself.

        Args:
            encoded: int32, (tokens,) each. The texts, without special tokens.
        """
        joined = [join_texts(self.tokenizer, ids, ids, sys.maxsize) for ids in encoded]
        first_lengths = np.array([min(length, self.max_positions) for _, length in joined], np.int64)
        cut = [ids[: self.max_positions] for ids, _ in joined]
        pairs = Features(cut, first_lengths, np.arange(len(cut)))
        texts = np.array([word.text for word in words], np.int64)
        positions = np.array([word.position for word in words], np.int64)
        found: list[tuple[str, ...]] = [()] * len(words)
        batches = predict_batches(
            self.model,
            MaskedWords(pairs, texts, positions),
            partial(fit_widths, widths=halve_widths(self.max_positions), batch_positions=self.batch_positions),
            self.batch_positions,
            make=self._mask,
        )
        for rows, outputs in batches if words else ():
            for row, logits in zip(rows, outputs["mlm"][:, 0, self._word_ids], strict=True):
                found[row] = self._choose(logits, words[row].spelling)
        return iter(found)

    def _mask(self, words: MaskedWords, rows: np.ndarray, width: int) -> dict[str, np.ndarray]:
        """Return the inputs of some words: the pair of each, in which its one piece is masked."""
        inputs, positions = make_inputs(words.pairs, words.texts[rows], width), words.positions[rows]
        inputs["token_ids"][np.arange(len(rows)), positions] = self.tokenizer.mask_id
        return inputs | {"mask_positions": positions[:, None].astype(np.int32)}

    def _find_nearest(self, words: Collection[tuple[str, tuple[int, ...]]]) -> None:
        """Find the nearest words of each word of several pieces, once for all texts."""
        new = sorted({*words} - self._nearest.keys())
        for start in range(0, len(new), WORDS_AT_ONCE):
            some = new[start : start + WORDS_AT_ONCE]
            means = np.stack([self._table[[*ids]].mean(axis=0) for _, ids in some])
            for word, cosines in zip(some, scale_to_unit(means) @ self._unit.T, strict=True):
                self._nearest[word] = self._choose(cosines, word[0])

    def _choose(self, scores: np.ndarray, spelling: str) -> tuple[str, ...]:
        """Return the words with the highest scores, float, (whole words,); ties go to the first in the vocabulary."""
        scores = scores.copy()
        scores[self._places.get(spelling, [])] = -np.inf
        count = min(self.count, len(scores))
        least = np.partition(scores, len(scores) - count)[len(scores) - count] if count else np.inf
        likely = np.flatnonzero((scores >= least) & (scores > -np.inf))
        chosen = likely[np.argsort(-scores[likely], kind="stable")][:count]
        return tuple(self._words[place] for place in chosen)


def scale_to_unit(vectors: np.ndarray) -> np.ndarray:
    """Return vectors, (number, width), at length 1; those of length 0 stay."""
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), np.finfo(np.float32).tiny)


def ignores_case(tokenizer: Tokenizer) -> bool:
    """Return whether a tokenizer makes lower case of text."""
    if not tokenizer.cased:
        return True
    upper, lower = map(tokenizer.encode, (ascii_uppercase, ascii_lowercase))
    return np.array_equal(upper, lower) and tokenizer.unk_id not in lower


def list_words(tokenizer: Tokenizer) -> dict[int, str]:
    """Return the ids of pieces that are whole words or signs, and how a text spells each."""
    found = {}
    for piece_id in np.flatnonzero(tokenizer.starts_word).tolist():
        if piece_id in tokenizer.special_ids or _UNUSED.fullmatch(tokenizer.pieces[piece_id]):
            continue
        spelling = tokenizer.decode([piece_id]).strip()
        if spelling and not any(character.isspace() or character == "\ufffd" for character in spelling):
            found[piece_id] = spelling
    return found


# Draw the copies of a row.


def draw_copies(
    texts: tuple[str, ...], slots: Sequence[Sequence[Slot]], copies: int, probability: float, rng: np.random.Generator
) -> list[tuple[str, ...]]:
    """Return the different copies of one or two texts, at most `copies`, none equal to the texts.

    Each copy starts from the texts as they are, and its words are drawn independently of each other, of the other text
    and of other copies. In the authors' code a pair keeps the last copy of its first text while the second is
    augmented, so most labels there belong to a first text that has changed.

    Args:
        texts: the texts of a row.
        slots: the words of each text, in the order of the text.
        probability: of the replacement of each word.
    """
    sizes = np.array([len(slot.candidates) for words in slots for slot in words], np.int64)
    if not len(sizes):
        return []
    is_replaced = rng.random((copies, len(sizes))) < probability
    choices = rng.integers(0, sizes, (copies, len(sizes)))
    found: dict[tuple[str, ...], None] = {}
    for replaced, chosen in zip(is_replaced.tolist(), choices.tolist(), strict=True):
        drawn = iter(zip(replaced, chosen, strict=True))
        found[tuple(_replace(text, words, drawn) for text, words in zip(texts, slots, strict=True))] = None
    return [copy for copy in found if copy != texts]


def _replace(text: str, words: Sequence[Slot], drawn: Iterator[tuple[bool, int]]) -> str:
    """Return a text in which words are replaced, by what is drawn for each."""
    parts, done = [], 0
    for word in words:
        is_replaced, chosen = next(drawn)
        if is_replaced:
            parts += [text[done : word.start], word.candidates[chosen]]
            done = word.end
    return "".join([*parts, text[done:]])


# Augment a table, and publish it.


def augment_rows(
    examples: Sequence[TextExample], proposer: WordProposer, copies: int, probability: float, seed: int
) -> Iterator[list[tuple[str, ...]]]:
    """Yield the texts of the copies of each row.

    What is drawn for a row depends on the seed and its number alone.
    """
    for start in range(0, len(examples), ROWS_AT_ONCE):
        rows = [tuple(example.inputs.values()) for example in examples[start : start + ROWS_AT_ONCE]]
        slots = iter(proposer.propose([text for texts in rows for text in texts]))
        for number, texts in enumerate(rows, start):
            rng = keyed_generator(seed, AUGMENTATION.name, number)
            yield draw_copies(texts, [next(slots) for _ in texts], copies, probability, rng)


def write_line(file: TextIO, columns: Sequence[str], *values: Any) -> None:
    """Write a row of a table as a line of JSON."""
    file.write(json.dumps(dict(zip(columns, values, strict=True)), ensure_ascii=False) + "\n")


def augment(
    config: PipelineConfig, model: str | Path, output: str | Path, examples: Sequence[TextExample] | None = None
) -> Path:
    """Publish a folder with `train.jsonl`, the training rows of a task and then their copies; skipped if it exists.

    The columns have the names that the task gives them, so the task reads the table with its own settings. All copies
    have the label of their row, also that of a regression. The result does not depend on the size of batches.

    Args:
        config: its sections `task` and `augmentation`, `seed` and `finetuning.max_train_examples` are used.
        model: a model directory with a masked-LM head, ours or Hugging Face's.
        output: the folder.
        examples: what `read_training` returns for this configuration, if already read.
    Raises:
        FileNotFoundError: the table, the model or the file of stop words is missing.
        ValueError: one of these is unusable, or the kind of task cannot be augmented.
    Example:
        >>> config = kbf.load_config("run.yaml", ["augmentation.copies=2"])
        >>> folder = kbf.augment(config, "model", "out/augmented")
        >>> table = kbf.read_table(folder / "train.jsonl")
        >>> table.texts[0], len(table.texts) > 8
        ('the film was fine', True)
    """
    output = check_local(output)
    config.check_augmented()
    config, model = fetch_tables(config), fetch(model)
    settings, arguments = config.needed_augmentation, config.task.arguments
    stop_words = settings.stop_words
    inputs = hold(model, config.task.train, *([stop_words] if stop_words else []))
    check_whole(model)
    key = augmentation_key(config, model)

    def build(work: Path) -> Contents:
        known = read_stop_words(stop_words)
        rows = read_training(config, make_task(**arguments))[0] if examples is None else examples
        plan_parts(AUGMENTING)
        expect(AUGMENTING.unit, len(rows))
        note(AUGMENTING, 0)
        columns = [arguments[name] for name in ("text", "text_pair", "label") if arguments[name] is not None]
        count = len(rows)
        with arithmetic("float32"), open(work / TABLE, "w", encoding="utf-8", newline="\n") as file:
            proposer = WordProposer(model, settings.candidates, known)
            seed = config.seed if settings.seed is None else settings.seed
            made = augment_rows(rows, proposer, settings.copies, settings.replacement_probability, seed)
            for example in rows:  # first, so that what is not to be given copies takes as many rows
                write_line(file, columns, *example.inputs.values(), example.label)
            for example, copies in zip(rows, made, strict=True):
                for texts in copies:
                    write_line(file, columns, *texts, example.label)
                count += len(copies)
                note(AUGMENTING)
        facts = config.model_dump(mode="json", include={"seed", "backend", "task"})
        facts["augmentation"] = settings.model_dump(mode="json")
        if (most := config.finetuning.max_train_examples) is not None:
            facts["finetuning"] = {"max_train_examples": most}
        return Contents(facts, augmentation_inputs(config, model), {TABLE_ROWS: len(rows), ROWS: count})

    return publish(output, AUGMENTATION.name, key, build, inputs=inputs, revision=AUGMENTATION.revision)

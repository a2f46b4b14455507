"""SavedModel signatures that take texts: in-graph WordPiece tokenization with tensorflow-text."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow_text

from keras_bert_flow.data.tasks import make_inputs
from keras_bert_flow.export.served_model import INPUT_NAMES, StringInputs
from keras_bert_flow.tasks.core.texts import TextExample, encode_examples
from keras_bert_flow.text.tokenizers.wordpiece import MAX_WORD_CHARACTERS

# Sentences for comparing an exported model with the original.
#
# They have various lengths and contain what tokenizers differ on: accents, scripts without spaces, digits, symbols and
# marks.

SENTENCES = (
    "Yes.",
    "No way!",
    "It rained all night.",
    "Where did you put the keys?",
    "A fine film, if a little long.",
    "The soup was cold and the waiter did not care.",
    "Ada Lovelace was born in London in 1815.",
    "Please send the invoice to accounts@example.com by Friday.",
    "Prices rose by 3.7% in March, more than anyone had expected.",
    "I have never been so bored in my life, and I have sat through tax law.",
    "The committee will meet again on 14 May at 10:30 in room 2-117.",
    "Café, naïve, façade, jalapeño, Zoë and Ångström keep their accents here.",
    "Der Zug nach Köln fährt heute von Gleis 7 ab.",
    "Il n'y a pas de fumée sans feu, disait ma grand-mère.",
    "¿Dónde está la biblioteca? Está cerrada los lunes.",
    "Быстрая лиса перепрыгнула через ленивую собаку.",
    "我们明天早上八点在车站见面。",
    "東京タワーの高さは333メートルです。",
    "서울은 대한민국의 수도이다.",
    "القاهرة هي عاصمة مصر.",
    "आज मौसम बहुत अच्छा है।",
    "Good morning 😀 see you at 8 🚀",
    "x = f(y) + 2*z[0]; // not a sentence, but people type such things",
    "https://www.example.org/path?query=1&other=two#part",
    "“Quoted”, ‘single’, and — with dashes – of two kinds…",
    "She said that he said that they had said nothing at all.",
    "The 19th-century railway, long abandoned, is now a path for cyclists.",
    "Water boils at 100 °C (212 °F) at sea level.",
    "Antidisestablishmentarianism is a long word; pneumonoultramicroscopicsilicovolcanoconiosis is longer.",
    "The patient was given 5 mg of the drug twice a day for two weeks, without any improvement.",
    "Under the terms of this contract neither party may disclose the price to anybody else before the closing date.",
    "He opened the door, saw the mess, closed the door again, and went for a walk.",
    "Of all the restaurants in town this is the only one that I would go back to, and the only one I cannot afford.",
    "The museum holds more than 40,000 objects, of which fewer than 2,000 are on display at any time.",
    "If the battery does not charge, unplug the cable, wait for ten seconds, and try another socket before you call.",
    "Scientists have found water on the moon, though far less of it than in the driest desert on Earth.",
    "The second half of the book, in which nothing happens for two hundred pages, is by far the better one.",
    "After three extensions, two lawsuits and one change of government, the bridge was opened to traffic on Tuesday "
    "by a minister who had voted against it.",
    "The model was trained on text from the encyclopedia, evaluated on questions written by students, and compared "
    "with two baselines, neither of which had seen the questions before; on the hardest of them all three did badly.",
    "Bring a warm coat, a torch, something to eat, enough water for a day, a map of the area that is made of paper, "
    "and tell somebody who stays at home where you are going and when you intend to be back, because there is no "
    "telephone network beyond the last village and the weather on the pass can change within minutes.",
)


TEXT, TEXT_PAIR = "text", "text_pair"  # names of the signatures, and of their arguments
# The characters that `text.tokenizers.normalization` drops. Line ends and tabs are kept, as whitespace.
DROPPED = r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\x{FFFD}]|\p{Cf}|\p{Cs}"
ACCENTS = r"\p{Mn}"
UTF8_BYTES = 4  # maximum number per character


class GraphTokenizer:
    """WordPiece tokenizer as TensorFlow graph operations.

    `FastBertTokenizer` would lowercase by NFKC and case folding, which turns "…" into "..." and "ß" into "ss", so its
    input is lowercased and stripped of accents beforehand. It limits words by bytes, ours by characters: a word of more
    than 200 characters is [UNK] here only beyond 800 bytes.

    Args:
        strings: the tokenizer to reproduce, and its maximum length.
    """

    def __init__(self, strings: StringInputs):
        self.tokenizer = tokenizer = strings.tokenizer
        self.sequence_length = strings.sequence_length
        self.pieces = tensorflow_text.FastBertTokenizer(
            vocab=list(tokenizer.pieces),
            max_bytes_per_word=MAX_WORD_CHARACTERS * UTF8_BYTES,
            token_out_type=tf.int64,
        )

    def __call__(self, text: tf.Tensor, text_pair: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Return int64 inputs (batch, length) for texts or pairs, with [CLS] and [SEP], truncated as elsewhere.

        Args:
            text, text_pair: UTF-8, (batch,).
        """
        first = self._tokenize(text)
        parts = [first] if text_pair is None else [first, self._tokenize(text_pair)]
        room = self.sequence_length - 1 - len(parts)
        closed = [self._close(ids) for ids in self._cut(parts, room)]
        start = tf.fill([tf.shape(text)[0], 1], tf.constant(self.tokenizer.cls_id, tf.int64))
        ids = tf.concat([start, *closed], axis=1)
        segments = [tf.zeros_like(start), *(tf.ones_like(part) * place for place, part in enumerate(closed))]
        return {
            "input_ids": ids.to_tensor(self.tokenizer.pad_id),
            "token_type_ids": tf.concat(segments, axis=1).to_tensor(0),
            "attention_mask": tf.ones_like(ids).to_tensor(0),
        }

    def _tokenize(self, text: tf.Tensor) -> tf.RaggedTensor:
        text = tf.strings.regex_replace(text, DROPPED, "")
        if not self.tokenizer.cased:
            text = tf.strings.lower(text, encoding="utf-8")
        if self.tokenizer.strips_accents:
            text = tf.strings.regex_replace(tensorflow_text.normalize_utf8(text, "NFD"), ACCENTS, "")
        return self.pieces.tokenize(text)

    def _cut(self, parts: list[tf.RaggedTensor], room: int) -> list[tf.RaggedTensor]:
        """Truncate the longer of two texts first, and the second of two equally long texts."""
        lengths = [ids.row_lengths() for ids in parts]
        if len(parts) == 1:
            return [_take(parts[0], tf.minimum(lengths[0], room))]
        halves = (room + 1) // 2, room // 2
        kept = [
            tf.minimum(mine, tf.maximum(tf.constant(half, tf.int64), room - other))
            for mine, other, half in zip(lengths, lengths[::-1], halves, strict=True)
        ]
        return [_take(ids, length) for ids, length in zip(parts, kept, strict=True)]

    def _close(self, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        end = tf.fill([ids.nrows(), 1], tf.constant(self.tokenizer.sep_id, tf.int64))
        return tf.concat([ids, end], axis=1)


def _take(ids: tf.RaggedTensor, lengths: tf.Tensor) -> tf.RaggedTensor:
    """Return the first `lengths` ids of each row."""
    return tf.RaggedTensor.from_tensor(ids.to_tensor(), lengths)


def add_strings(
    module: tf.Module, strings: StringInputs, function: Callable, names: tuple[str, ...]
) -> dict[str, Callable[..., Mapping[str, tf.Tensor]]]:
    """Attach a tokenizer to a module, and return signatures for texts and for pairs of texts.

    Args:
        function: computes outputs from inputs by name.
        names: names of the inputs that it takes.
    """
    tokenize = GraphTokenizer(strings)
    spec = tf.TensorSpec([None], tf.string)

    def compute(*texts: tf.Tensor) -> Mapping[str, tf.Tensor]:
        inputs = tokenize(*texts)
        return function({name: inputs[name] for name in names})

    module.tokenizer = tokenize.pieces
    module.tokenize_text = tf.function(lambda text: tokenize(text), [spec], autograph=False)
    module.tokenize_text_pair = tf.function(
        lambda text, text_pair: tokenize(text, text_pair), [spec, spec], autograph=False
    )
    single = tf.function(lambda text: compute(text), autograph=False)
    paired = tf.function(lambda text, text_pair: compute(text, text_pair), autograph=False)
    return {
        TEXT: single.get_concrete_function(tf.TensorSpec([None], tf.string, name=TEXT)),
        TEXT_PAIR: paired.get_concrete_function(
            *(tf.TensorSpec([None], tf.string, name=name) for name in (TEXT, TEXT_PAIR))
        ),
    }


def compare_strings(path: Path, strings: StringInputs) -> None:
    """Check that a SavedModel tokenizes texts as the tokenizer does.

    Raises:
        ValueError: a text is tokenized differently.
    """
    loaded, whole = tf.saved_model.load(path), " ".join(SENTENCES)
    for rows in (
        [(text,) for text in (*SENTENCES, whole)],
        [*zip(SENTENCES[::2], SENTENCES[1::2], strict=True), (whole, SENTENCES[0]), (SENTENCES[0], whole)],
        [(whole, whole)],
    ):
        examples = [TextExample(*row) for row in rows]
        wanted = encode_examples(strings.tokenizer, examples, strings.sequence_length, labels={})
        columns = [tf.constant(column) for column in zip(*rows, strict=True)]
        found = (loaded.tokenize_text if len(columns) == 1 else loaded.tokenize_text_pair)(*columns)
        inputs = make_inputs(wanted, np.arange(len(wanted)), int(wanted.lengths.max()))
        for name, values in inputs.items():
            received = found[INPUT_NAMES[name]].numpy()
            if received.shape != values.shape or (received != values).any():
                raise ValueError(
                    "A SavedModel must make the tokens of texts that the model's tokenizer makes. Received: other "
                    f"{INPUT_NAMES[name]} with tensorflow-text {tensorflow_text.__version__}. Leave --strings out."
                )

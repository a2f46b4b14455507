"""SavedModel signatures that take texts: in-graph WordPiece tokenization with tensorflow-text."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf
import tensorflow_text

from keras_bert_flow.data.tasks import make_inputs
from keras_bert_flow.export.comparison import SENTENCES
from keras_bert_flow.export.served_model import INPUT_NAMES, StringInputs
from keras_bert_flow.tasks.core.texts import TextExample, encode_examples
from keras_bert_flow.text.vocabulary import MAX_WORD_CHARACTERS

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
        ends = tf.fill([tf.shape(text)[0], 1], tf.constant(self.tokenizer.sep_id, tf.int64))
        closed = [tf.concat([ids, ends], axis=1) for ids in self._cut(parts, room)]
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
            kept = [tf.minimum(lengths[0], room)]
        else:
            halves = (room + 1) // 2, room // 2
            kept = [
                tf.minimum(mine, tf.maximum(tf.constant(half, tf.int64), room - other))
                for mine, other, half in zip(lengths, lengths[::-1], halves, strict=True)
            ]
        return [
            tf.RaggedTensor.from_tensor(ids.to_tensor(), length)  # the first ids of each row
            for ids, length in zip(parts, kept, strict=True)
        ]


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

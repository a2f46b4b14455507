"""Put a head of one's own on a pre-trained encoder: two answers about a text at once, by the functional API of Keras.

    KERAS_BACKEND=torch python examples/custom_head.py MODEL

MODEL is any model directory, ours or Hugging Face's, or hf://org/name. The texts, their topics and their tones are made
up; the head learns them by heart.
"""

import sys

import keras
import numpy as np

import keras_bert_flow as kbf
from keras_bert_flow.text.tokenizers.files import find_tokenizer_file, read_tokenizer_file

TEXTS = ["the film was a joy", "the film was a bore", "the soup was a joy", "the soup was a bore"]
IS_FILM, IS_GOOD = np.array([1, 1, 0, 0]), np.array([1, 0, 1, 0])


def encode(tokenizer, backbone: kbf.Backbone) -> dict[str, np.ndarray]:
    """Return what the encoder takes, (texts, length) each; a family without segments takes no `segment_ids`."""
    task = kbf.make_task("classification")
    rows = task.encode(tokenizer, [task.make_example(text) for text in TEXTS], sequence_length=16).token_ids
    token_ids, padding_mask = np.zeros((2, len(rows), max(map(len, rows))), "int32")
    for row, ids in enumerate(rows):
        token_ids[row, : len(ids)], padding_mask[row, : len(ids)] = ids, 1
    inputs = {"token_ids": token_ids, "segment_ids": np.zeros_like(token_ids), "padding_mask": padding_mask}
    return {name: inputs[name] for name in backbone.input}


def main(folder: str, epochs: int = 100) -> None:
    keras.utils.set_random_seed(1)
    backbone = kbf.Backbone.from_preset(folder)
    tokenizer = read_tokenizer_file(find_tokenizer_file(folder))
    inputs = encode(tokenizer, backbone)

    # (batch, length, hidden) → the mean over what is no padding, (batch, hidden)
    hidden, mask = backbone.output["sequence_output"], backbone.input["padding_mask"]
    weights = keras.ops.expand_dims(keras.ops.cast(mask, hidden.dtype), -1)
    pooled = keras.ops.sum(hidden * weights, 1) / keras.ops.sum(weights, 1)
    outputs = {name: keras.layers.Dense(2, name=name)(pooled) for name in ("topic", "tone")}
    model = keras.Model(backbone.input, outputs)

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(1e-3), loss=dict.fromkeys(outputs, loss))
    model.fit(inputs, {"topic": IS_FILM, "tone": IS_GOOD}, epochs=epochs, batch_size=4, verbose=0)
    answers = model.predict(inputs, verbose=0)
    for text, topic, tone in zip(TEXTS, answers["topic"].argmax(1), answers["tone"].argmax(1), strict=True):
        print(f"{text}: {('soup', 'film')[topic]}, {('bad', 'good')[tone]}")


if __name__ == "__main__":
    main(*sys.argv[1:2])

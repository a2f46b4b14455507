"""Run masked-LM training steps of KerasHub's BERT with `fit`, as its guides do; it has no next-sentence head."""

import os

from benchmarks.peers.serving import endless, make_batch, parse_shape, serve

shape = parse_shape(("jax", "tensorflow", "torch"))
os.environ["KERAS_BACKEND"] = shape.backend

import keras  # noqa: E402
import keras_hub  # noqa: E402

from benchmarks.peers.memory import device_memory  # noqa: E402

keras.config.set_dtype_policy(shape.precision)
backbone = keras_hub.models.BertBackbone(
    vocabulary_size=shape.vocabulary_size,
    num_layers=shape.num_layers,
    num_heads=shape.num_heads,
    hidden_dim=shape.hidden_dim,
    intermediate_dim=shape.intermediate_dim,
    dropout=shape.dropout,
    max_sequence_length=512,
)
model = keras_hub.models.BertMaskedLM(backbone)
model.compile(
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    optimizer=keras.optimizers.AdamW(1e-4),
    jit_compile=True if shape.compile else "auto",
)
batch = make_batch(shape)
inputs = {name: batch[name] for name in ("token_ids", "segment_ids", "padding_mask", "mask_positions")}
example = (inputs, batch["mlm"], (batch["mlm"] >= 0).astype("float32"))


def run(steps: int) -> None:
    # The `fit` of KerasHub's tasks would take no generator; it prepares text, then calls this one.
    keras.Model.fit(model, endless(example), steps_per_epoch=steps, shuffle=False, verbose=0)


serve({"step": run}, device_memory(shape))

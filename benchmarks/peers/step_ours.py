"""Run pre-training steps of this package with `fit`: on one synthetic batch, from records, and the reading alone."""

import os
from itertools import islice

from benchmarks.peers.serving import endless, make_batch, parse_shape, serve

shape = parse_shape(("jax", "tensorflow", "torch"))
os.environ["KERAS_BACKEND"] = shape.backend

import numpy as np  # noqa: E402

import keras_bert_flow as kbf  # noqa: E402
from benchmarks.peers.memory import device_memory  # noqa: E402
from keras_bert_flow.training.memory import keep_freed_memory  # noqa: E402

keep_freed_memory()  # as `kbf pretrain` does
backbone = kbf.BertBackbone(
    vocabulary_size=shape.vocabulary_size,
    num_layers=shape.num_layers,
    num_heads=shape.num_heads,
    hidden_dim=shape.hidden_dim,
    intermediate_dim=shape.intermediate_dim,
    dropout_rate=shape.dropout,
    attention_dropout_rate=shape.dropout,
    dtype=shape.precision,
)
model = kbf.BertPretrainer(backbone)
optimizer = kbf.adamw(learning_rate=1e-4, warmup_steps=1000, total_steps=1_000_000)
model.compile(optimizer=optimizer, jit_compile=True if shape.compile else "auto")
batch = make_batch(shape)
inputs = {name: batch[name] for name in ("token_ids", "segment_ids", "padding_mask", "mask_positions")}
labels = {name: batch[name] for name in ("mlm", "nsp")}
example = (inputs, labels, {name: np.ones(values.shape, "float32") for name, values in labels.items()})


def run(steps: int) -> None:
    model.fit(endless(example), steps_per_epoch=steps, shuffle=False, verbose=0)


jobs = {"step": run}
if shape.records:
    records = kbf.PretrainingRecords(shape.records)
    reader = kbf.pretraining_dataset(records, shape.batch_size)
    stream = iter(kbf.pretraining_dataset(records, shape.batch_size))
    jobs["job"] = lambda steps: model.fit(reader, steps_per_epoch=steps, shuffle=False, verbose=0)
    jobs["reading"] = lambda steps: [None for _ in islice(stream, steps)]

serve(jobs, device_memory(shape))

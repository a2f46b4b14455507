"""Run steps of this package with `fit`: on one synthetic batch, from records; read alone."""

import os
from itertools import islice

from benchmarks.peers.serving import endless, make_batch, parse_shape, serve

shape = parse_shape(("jax", "tensorflow", "torch"))
os.environ["KERAS_BACKEND"] = shape.backend

import numpy as np  # noqa: E402

import keras_bert_flow as kbf  # noqa: E402
from benchmarks.peers.memory import device_memory  # noqa: E402
from keras_bert_flow.backends.runtime import keep_freed_memory  # noqa: E402
from keras_bert_flow.training.optimizers.adam import make_guarded_optimizer  # noqa: E402
from keras_bert_flow.training.optimizers.schedules import WarmupDecay  # noqa: E402

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
is_pretraining = shape.task == "pretraining"
model = kbf.BertPretrainer(backbone) if is_pretraining else kbf.TextClassifier(backbone, num_classes=2)
options = {"learning_rate": 1e-4, "warmup_steps": 1000, "total_steps": 1_000_000}
if shape.optimizer == "muon":  # as `kbf pretrain` has it
    optimizer = make_guarded_optimizer(
        "muon",
        WarmupDecay(*options.values()),
        muon_options={
            "matrices": backbone.list_matrices(),
            "product_type": "bfloat16" if shape.precision == "mixed_bfloat16" else "float32",
        },
    )
else:
    optimizer = kbf.adamw(**options)
model.compile(optimizer=optimizer, jit_compile=True if shape.compile else "auto")
batch = make_batch(shape)
names = ("token_ids", "segment_ids", "padding_mask", *(["mask_positions"] if is_pretraining else []))
inputs = {name: batch[name] for name in names}
labels = {name: batch[name] for name in ("mlm", "nsp")}
example = (inputs, labels, {name: np.ones(values.shape, "float32") for name, values in labels.items()})
if not is_pretraining:
    example = (inputs, batch["nsp"])


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

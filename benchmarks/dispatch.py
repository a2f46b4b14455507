"""Compare how much of a training step on PyTorch is Python: an eager step, a recorded one, and that of transformers.

python -m benchmarks.dispatch                                       # 12 layers on 8 tokens: almost nothing to compute
python -m benchmarks.dispatch --layers 2 --width 128 --rows 32 --length 128    # `tiny` at a usual batch

Prints processor time of a step, which other processes on the machine change little. Each side makes the same step in
one thread: masked LM and next sentence, dropout 0.1, clipping and AdamW.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ["KERAS_BACKEND"] = "torch"

import numpy as np
import torch

import keras_bert_flow as kbf

VOCABULARY = 1000
STEPS = 15


def make_batch(rows: int, length: int) -> tuple[dict, dict, dict]:
    rng = np.random.default_rng(0)
    masks = max(1, length * 15 // 100)
    x = {
        "token_ids": rng.integers(5, VOCABULARY, (rows, length)),
        "segment_ids": np.zeros((rows, length)),
        "padding_mask": np.ones((rows, length)),
        "mask_positions": np.sort(rng.permuted(np.tile(np.arange(1, length), (rows, 1)), axis=1)[:, :masks]),
    }
    y = {"mlm": rng.integers(5, VOCABULARY, (rows, masks)), "nsp": rng.integers(0, 2, rows)}
    weights = {"mlm": np.ones((rows, masks), "float32"), "nsp": np.ones(rows, "float32")}
    tensors = ({name: torch.from_numpy(value.astype("int32")) for name, value in part.items()} for part in (x, y))
    return (*tensors, {name: torch.from_numpy(value) for name, value in weights.items()})


def make_ours(shape: dict[str, int], batch: tuple[dict, dict, dict], jit_compile: bool) -> Callable[[], object]:
    model = kbf.BertPretrainer(kbf.BertBackbone(vocabulary_size=VOCABULARY, **shape))
    model.compile(kbf.adamw(learning_rate=1e-4, warmup_steps=10, total_steps=1000), jit_compile=jit_compile)
    for _ in range(2):  # the first builds what `fit` would, the second is recorded
        model.train_on_batch(*batch)
    return lambda: model.train_function([batch])


def make_theirs(shape: dict[str, int], batch: tuple[dict, dict, dict]) -> Callable[[], object]:
    from transformers import BertConfig, BertForPreTraining

    x, y, _ = batch
    config = BertConfig(
        vocab_size=VOCABULARY,
        num_hidden_layers=shape["num_layers"],
        num_attention_heads=shape["num_heads"],
        hidden_size=shape["hidden_dim"],
        intermediate_size=shape["intermediate_dim"],
        max_position_embeddings=shape["max_positions"],
    )
    model = BertForPreTraining(config)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    labels = torch.full(x["token_ids"].shape, -100).scatter(1, x["mask_positions"].long(), y["mlm"].long())
    inputs = {
        "input_ids": x["token_ids"].long(),
        "attention_mask": x["padding_mask"].long(),
        "token_type_ids": x["segment_ids"].long(),
        "labels": labels,
        "next_sentence_label": y["nsp"].long(),
    }

    def step() -> None:
        optimizer.zero_grad()
        model(**inputs).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def measure(step: Callable[[], object]) -> float:
    """Return the median processor time of a step in ms."""
    for _ in range(3):
        step()
    times = []
    for _ in range(STEPS):
        started_at = time.process_time()
        step()
        times.append(time.process_time() - started_at)
    return statistics.median(times) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("layers", 12), ("width", 48), ("heads", 12), ("rows", 1), ("length", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    torch.set_num_threads(1)
    shape = {
        "num_layers": given.layers,
        "num_heads": given.heads if given.width % given.heads == 0 else max(1, given.width // 64),
        "hidden_dim": given.width,
        "intermediate_dim": 2 * given.width if given.width < 64 else 4 * given.width,
        "max_positions": max(64, given.length),
    }
    batch = make_batch(given.rows, given.length)
    print(f"{shape['num_layers']} layers of {shape['hidden_dim']}, {given.rows} x {given.length} tokens, one thread")
    found = {}
    for name, make in (
        ("eager", lambda: make_ours(shape, batch, False)),
        ("recorded (jit_compile=True)", lambda: make_ours(shape, batch, True)),
        ("transformers, eager", lambda: make_theirs(shape, batch)),
    ):
        started_at = time.process_time()
        step = make()
        first = time.process_time() - started_at
        found[name] = measure(step)
        print(
            f"{name:28} {found[name]:8.1f} ms a step, {found[name] / found['eager']:.2f} of eager; {first:.1f} s before"
        )


if __name__ == "__main__":
    main()

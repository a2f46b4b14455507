"""Compare how much of a training step on PyTorch is Python: an eager step, a recorded one, and that of transformers.

python -m benchmarks.dispatch                                       # 12 layers on 8 tokens: almost nothing to compute
python -m benchmarks.dispatch --layers 2 --width 128 --rows 32 --length 128    # `tiny` at a usual batch

Prints processor time of a step, which other processes on the machine change little. Each side makes the same step in
one thread: masked LM and next sentence, dropout 0.1, clipping and AdamW.
"""

import argparse
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"

import numpy as np
import torch

import keras_bert_flow as kbf

VOCABULARY = 1000
ROUNDS, STEPS, WARMUP = 8, 13, 3  # the first steps of a turn are not counted
SIDES = EAGER, RECORDED, THEIRS = "eager", "recorded (jit_compile=True)", "transformers, eager"


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


def serve(side: str, shape: dict[str, int], rows: int, length: int, asked: Any) -> None:
    """Make the step of a side; send the seconds that took, and the processor time of some steps for each message."""
    torch.set_num_threads(1)
    started_at, batch = time.process_time(), make_batch(rows, length)
    step = make_theirs(shape, batch) if side == THEIRS else make_ours(shape, batch, side == RECORDED)
    asked.send(time.process_time() - started_at)
    while asked.recv():
        times = []
        for _ in range(STEPS):
            before = time.process_time()
            step()
            times.append(time.process_time() - before)
        asked.send(times[WARMUP:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, default in (("layers", 12), ("width", 48), ("heads", 12), ("rows", 1), ("length", 8)):
        parser.add_argument(f"--{name}", type=int, default=default)
    given = parser.parse_args()
    shape = {
        "num_layers": given.layers,
        "num_heads": given.heads if given.width % given.heads == 0 else max(1, given.width // 64),
        "hidden_dim": given.width,
        "intermediate_dim": 2 * given.width if given.width < 64 else 4 * given.width,
        "max_positions": max(64, given.length),
    }
    print(f"{shape['num_layers']} layers of {shape['hidden_dim']}, {given.rows} x {given.length} tokens, one thread")
    context = multiprocessing.get_context("spawn")  # a process each, as in training: what one imports slows others down
    sides, times = {}, {side: [] for side in SIDES}
    for side in SIDES:
        sides[side], theirs = context.Pipe()
        context.Process(target=serve, args=(side, shape, given.rows, given.length, theirs), daemon=True).start()
    first = {side: asked.recv() for side, asked in sides.items()}
    for _ in range(ROUNDS):  # in turns, because a core is slower beside other processes
        for side, asked in sides.items():
            asked.send(True)
            times[side] += asked.recv()
    for asked in sides.values():
        asked.send(False)
    found = {side: statistics.median(values) * 1e3 for side, values in times.items()}
    for side, each in found.items():
        ratios = f"{each / found[EAGER]:.2f} of eager, {each / found[THEIRS]:.2f} of transformers"
        print(f"{side:28} {each:8.1f} ms a step, {ratios}; {first[side]:.1f} s before")


if __name__ == "__main__":
    main()

"""Measure the peak memory and the time of a training step for each value of `pretraining.rematerialise`.

Each measurement is a process of its own; its peak is what the system counts (VmHWM), less what it had before the first
step. On a GPU the peak of the host says nothing: this is for CPUs.

    KERAS_BACKEND=torch python benchmarks/rematerialisation.py --layers 6 --width 384 --batch 16 --length 128
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

PARTS = ("nothing", "blocks", "attention")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, value in {"layers": 6, "width": 384, "batch": 16, "length": 128, "steps": 4}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--child", choices=PARTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options)))
        return
    results = {part: run_child(part) for part in PARTS}
    first = results["nothing"]
    print("| recomputed | growth of memory in training, MiB | step, s | memory | time |")
    print("|---|---|---|---|---|")
    for part, found in results.items():
        ratios = [found[name] / first[name] for name in ("megabytes", "seconds")]
        print(f"| {part} | {found['megabytes']:,.0f} | {found['seconds']:.2f} | {ratios[0]:.2f} | {ratios[1]:.2f} |")


def run_child(part: str) -> dict[str, float]:
    command = (sys.executable, __file__, *sys.argv[1:], "--child", part)
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=900)
    return json.loads(done.stdout.splitlines()[-1])


def measure(options: argparse.Namespace) -> dict[str, float]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import keras
    import numpy as np

    from keras_bert_flow.models.backbone import BertBackbone
    from keras_bert_flow.models.pretraining.masked_lm import BertPretrainer

    shape = (options.batch, options.length)
    backbone = BertBackbone(
        vocabulary_size=8000,
        num_layers=options.layers,
        num_heads=options.width // 64,
        hidden_dim=options.width,
        intermediate_dim=4 * options.width,
    )
    model = BertPretrainer(backbone)
    backbone.set_rematerialised(options.child)
    model.compile(optimizer=keras.optimizers.AdamW(1e-4))
    rng = np.random.default_rng(1)
    inputs = {
        "token_ids": rng.integers(5, 8000, shape),
        "segment_ids": np.zeros(shape, "int32"),
        "padding_mask": np.ones(shape, "int32"),
        "mask_positions": rng.integers(1, options.length, (options.batch, 20)),
    }
    labels = {"mlm": rng.integers(5, 8000, (options.batch, 20)), "nsp": rng.integers(0, 2, options.batch)}
    weights = {name: np.ones(label.shape, "float32") for name, label in labels.items()}
    before, seconds = read_peak(), []
    for _ in range(1 + options.steps):
        started = time.perf_counter()
        float(model.train_on_batch(inputs, labels, sample_weight=weights)[0])
        seconds.append(time.perf_counter() - started)
    return {"megabytes": read_peak() - before, "seconds": sorted(seconds[1:])[options.steps // 2]}


def read_peak() -> float:
    """Return the most memory that this process has had, MiB; Linux."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


if __name__ == "__main__":
    main()

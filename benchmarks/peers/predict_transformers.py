"""Predict the texts of a file with transformers: its pipeline, and a plain loop over batches sorted by length.

python -m benchmarks.peers.predict_transformers MODEL TEXTS POSITIONS...
"""

import json
import os
import sys
from functools import partial
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoTokenizer, BertForSequenceClassification, pipeline

from benchmarks.peers.serving import serve

folder, path, *positions = sys.argv[1:]
longest = json.loads((Path(folder) / "task.json").read_text())["sequence_length"]
texts = Path(path).read_text(encoding="utf-8").split("\n")[1:-1]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = BertForSequenceClassification.from_pretrained(folder).eval()
classify = pipeline("text-classification", model=model, tokenizer=tokenizer, device="cpu")


def run_pipeline(rows: int, steps: int) -> None:
    for _ in range(steps):
        classify(texts, batch_size=rows, truncation=True, max_length=longest, top_k=None)


def run_loop(rows: int, steps: int) -> None:
    for _ in range(steps):
        encoded = tokenizer(texts, truncation=True, max_length=longest)
        order = sorted(range(len(texts)), key=lambda row: len(encoded["input_ids"][row]))
        answers = [None] * len(texts)
        for start in range(0, len(order), rows):
            chosen = order[start : start + rows]
            batch = tokenizer.pad(
                {name: [values[row] for row in chosen] for name, values in encoded.items()}, return_tensors="pt"
            )
            with torch.inference_mode():
                shares = model(**batch).logits.softmax(-1)
            for row, label, probabilities in zip(chosen, shares.argmax(-1).tolist(), shares.tolist(), strict=True):
                answers[row] = (model.config.id2label[label], probabilities)


jobs = {}
for count in positions:
    rows = max(1, int(count) // longest)
    jobs |= {f"pipeline-{count}": partial(run_pipeline, rows), f"loop-{count}": partial(run_loop, rows)}
serve(jobs)

"""Pre-train transformers' BertForMaskedLM on the records of this package for a given processor time.

    python -m benchmarks.peers.pretrain_transformers RECORDS OUTPUT --minutes 5 --size tiny --seed 1

The batches are those of this package (the same records, order and dynamic masks), and so are the held-out
records. Model and loop are those of transformers and PyTorch: all positions are projected to the vocabulary, AdamW
with decay on matrices only, clipping, autocast to bfloat16. The learning rate rises over 2 % of the processor time and
falls to 0 where it ends, so the run is trained to its end. The last line printed is a JSON object with the results;
OUTPUT/model is a model directory with the vocabulary. Evaluations do not count as processor time.
"""

import argparse
import json
import os
import time
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import transformers

from keras_bert_flow.data.pretraining import ordered_batches, pretraining_dataset
from keras_bert_flow.data.pretraining_records import PretrainingRecords
from keras_bert_flow.models.sizes import get_size

WARMUP_SHARE = 0.02
WITHOUT_LOSS = -100  # what PyTorch's cross-entropy passes over
HELD_OUT_BATCH = 64


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--minutes", type=float, required=True, help="processor time, imports included")
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--num-layers", type=int, help="encoder blocks, in place of those of --size")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--precision", default="mixed_bfloat16", choices=("float32", "mixed_bfloat16"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--evaluations", type=int, default=10)
    parser.add_argument("--evaluate-instances", type=int, default=1000)
    return parser.parse_args()


def make_model(
    size: str, num_layers: int | None, vocabulary_size: int, max_positions: int
) -> transformers.BertForMaskedLM:
    """Return a new model without dropout, as the recipes that it is compared with."""
    shape = get_size(size)
    config = transformers.BertConfig(
        vocab_size=vocabulary_size,
        hidden_size=shape["hidden_dim"],
        num_hidden_layers=num_layers or shape["num_layers"],
        num_attention_heads=shape["num_heads"],
        intermediate_size=shape["intermediate_dim"],
        max_position_embeddings=max_positions,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        attn_implementation="sdpa",
    )
    return transformers.BertForMaskedLM(config)


def make_optimizer(model: torch.nn.Module, learning_rate: float) -> torch.optim.Optimizer:
    plain = ("bias", "LayerNorm.weight")
    groups = [
        {"params": [value for name, value in model.named_parameters() if name.endswith(plain)], "weight_decay": 0.0},
        {"params": [value for name, value in model.named_parameters() if not name.endswith(plain)]},
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, weight_decay=0.01, eps=1e-6, fused=True)


def to_tensors(x: dict, y: dict, weights: dict) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return the inputs of transformers and the labels of all positions, (batch, length)."""
    names = {"input_ids": "token_ids", "token_type_ids": "segment_ids", "attention_mask": "padding_mask"}
    inputs = {name: torch.from_numpy(x[ours]).long() for name, ours in names.items()}
    labels = np.full(x["token_ids"].shape, WITHOUT_LOSS)
    rows, places = np.nonzero(weights["mlm"] > 0)
    labels[rows, x["mask_positions"][rows, places]] = y["mlm"][rows, places]
    return inputs, torch.from_numpy(labels)


def autocast(precision: str) -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "mixed_bfloat16")


def evaluate(model: torch.nn.Module, records: PretrainingRecords, limit: int, precision: str) -> dict[str, float]:
    """Return the mean loss (nats) and accuracy over the masked tokens of the first held-out records."""
    model.eval()
    loss = correct = count = 0.0
    with torch.no_grad(), autocast(precision):
        for x, y, weights in ordered_batches(records, HELD_OUT_BATCH, limit):
            inputs, labels = to_tensors(x, y, weights)
            is_masked = labels != WITHOUT_LOSS
            logits, chosen = model(**inputs).logits[is_masked].float(), labels[is_masked]
            loss += float(torch.nn.functional.cross_entropy(logits, chosen, reduction="sum"))
            correct += float((logits.argmax(-1) == chosen).sum())
            count += len(chosen)
    model.train()
    return {"masked_lm_loss": loss / count, "masked_lm_accuracy": correct / count}


def train(model: torch.nn.Module, arguments: argparse.Namespace, training: PretrainingRecords, measure) -> list[dict]:
    """Train until the processor time is spent, and return the held-out scores with the seconds they were reached at."""
    budget, excluded, lines = 60 * arguments.minutes, 0.0, []
    optimizer = make_optimizer(model, arguments.learning_rate)
    batches = pretraining_dataset(training, arguments.batch_size, arguments.seed, masking="dynamic")
    for step, batch in enumerate(batches):
        spent = (time.process_time() - excluded) / budget
        is_done = spent >= 1
        if is_done or spent * arguments.evaluations >= len(lines) + 1:
            started_at = time.process_time()
            lines.append({"step": step, "seconds": started_at - excluded} | measure())
            excluded += time.process_time() - started_at
        if is_done:
            return lines
        rate = min(1.0, spent / WARMUP_SHARE) * (1 - spent)
        for group in optimizer.param_groups:
            group["lr"] = arguments.learning_rate * rate
        inputs, labels = to_tensors(*batch)
        with autocast(arguments.precision):
            loss = model(**inputs, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    raise AssertionError("The data set is endless.")


def main() -> None:
    arguments = parse_arguments()
    torch.manual_seed(arguments.seed)
    training, held_out = PretrainingRecords(arguments.records), PretrainingRecords(arguments.records, "held_out")
    tokenizer, length = training.read_tokenizer(), training.sequence_length
    model = make_model(arguments.size, arguments.num_layers, tokenizer.vocabulary_size, max(128, length)).train()

    def measure() -> dict[str, float]:
        return evaluate(model, held_out, arguments.evaluate_instances, arguments.precision)

    lines = train(model, arguments, training, measure)
    model.save_pretrained(arguments.output / "model")
    (arguments.output / "model" / "vocab.txt").write_bytes((arguments.records / "vocab.txt").read_bytes())
    tokens = lines[-1]["step"] * arguments.batch_size * length
    print(json.dumps(lines[-1] | {"steps": lines[-1]["step"], "tokens": tokens, "lines": lines}))


if __name__ == "__main__":
    main()

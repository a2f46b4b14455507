"""Run MLM and next-sentence training steps of transformers' BertForPreTraining in a plain loop of PyTorch's."""

import torch
from transformers import BertConfig, BertForPreTraining

from benchmarks.peers.memory import device_memory
from benchmarks.peers.serving import make_batch, parse_shape, serve

shape = parse_shape(("torch",))
device = {"cpu": "cpu", "gpu": "cuda"}[shape.device]
torch.manual_seed(0)
config = BertConfig(
    vocab_size=shape.vocabulary_size,
    hidden_size=shape.hidden_dim,
    num_hidden_layers=shape.num_layers,
    num_attention_heads=shape.num_heads,
    intermediate_size=shape.intermediate_dim,
    hidden_dropout_prob=shape.dropout,
    attention_probs_dropout_prob=shape.dropout,
    attn_implementation="sdpa",
)
model = BertForPreTraining(config).to(device).train()
optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
batch = {name: torch.from_numpy(values).long().to(device) for name, values in make_batch(shape).items()}
labels = torch.full_like(batch["token_ids"], -100).scatter(1, batch["mask_positions"], batch["mlm"])
inputs = {
    "input_ids": batch["token_ids"],
    "token_type_ids": batch["segment_ids"],
    "attention_mask": batch["padding_mask"],
    "labels": labels,
    "next_sentence_label": batch["nsp"],
}
forward = torch.compile(model) if shape.compile else model


def run(steps: int) -> None:
    for _ in range(steps):
        with torch.autocast(device, dtype=torch.bfloat16, enabled=shape.precision == "mixed_bfloat16"):
            loss = forward(**inputs).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    loss.item()


serve({"step": run}, device_memory(shape))

"""Pre-train in a loop of PyTorch's own, without `fit`: a Keras model is a `torch.nn.Module` there.

python examples/torch_loop.py out/records out/model --steps 500
"""

import argparse
import os

os.environ["KERAS_BACKEND"] = "torch"

import torch

import keras_bert_flow as kbf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records")
    parser.add_argument("output")
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch-size", type=int, default=32)
    arguments = parser.parse_args()

    torch.manual_seed(1)
    records = kbf.PretrainingRecords(arguments.records)
    vocabulary = f"{arguments.records}/vocab.txt"
    pieces = kbf.WordPieceTokenizer.from_file(vocabulary).vocabulary_size
    model = kbf.MaskedLM(kbf.BertBackbone.from_size("tiny", vocabulary_size=pieces, use_pooler=False))
    parameters = [variable.value for variable in model.trainable_variables]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=arguments.steps)
    batches = iter(kbf.pretraining_dataset(records, batch_size=arguments.batch_size))
    for step in range(1, arguments.steps + 1):
        inputs, labels, weights = next(batches)
        logits = model(inputs, training=True)["mlm"]  # (batch, masked positions, vocabulary)
        losses = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), torch.as_tensor(labels["mlm"]).flatten().long(), reduction="none"
        )
        weight = torch.as_tensor(weights["mlm"]).flatten()
        loss = (losses * weight).sum() / weight.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        if step % 100 == 0 or step == arguments.steps:
            print(f"step {step}: loss {loss.item():.3f}")
    model.save_to_preset(arguments.output, vocabulary_path=vocabulary)


if __name__ == "__main__":
    main()

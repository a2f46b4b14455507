"""Fine-tune a model directory with transformers on the task of a configuration, and print its score.

    python -m benchmarks.peers.finetune_transformers CONFIG MODEL SEED [key=value ...]

Tables are read and predictions are scored as this package does it; tokenizer, model and loop are those of transformers
and PyTorch: texts padded to the longest of a batch, AdamW with linear decay after warm-up, clipping, autocast. The
shuffled examples that are left over at the end of an epoch are passed over.
"""

import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
from transformers import AutoTokenizer, BertForSequenceClassification, get_linear_schedule_with_warmup

from keras_bert_flow.config_file import load_config
from keras_bert_flow.tasks.features import Features
from keras_bert_flow.training.task_data import read_examples

config_path, folder, seed, *overrides = sys.argv[1:]
config = load_config(config_path, overrides)
settings = config.finetuning
torch.manual_seed(int(seed))
order = np.random.default_rng(int(seed))
task, training, dev = read_examples(config)
tokenizer = AutoTokenizer.from_pretrained(folder)
model = BertForSequenceClassification.from_pretrained(
    folder,
    num_labels=len(task.labels) or 1,
    hidden_dropout_prob=settings.dropout_rate,
    attention_probs_dropout_prob=settings.dropout_rate,
    ignore_mismatched_sizes=True,
)
label_ids = {name: number for number, name in enumerate(task.labels)}
labels = [label_ids[example.label] if label_ids else float(example.label) for example in training]
steps = settings.epochs * (len(training) // settings.batch_size)
plain = ("bias", "LayerNorm.weight")
groups = [
    {"params": [value for name, value in model.named_parameters() if name.endswith(plain)], "weight_decay": 0.0},
    {"params": [value for name, value in model.named_parameters() if not name.endswith(plain)]},
]
optimizer = torch.optim.AdamW(groups, lr=settings.learning_rate, weight_decay=settings.weight_decay)
schedule = get_linear_schedule_with_warmup(optimizer, int(settings.warmup_fraction * steps), steps)


def run(examples, **more):
    texts = [example.text for example in examples]
    pairs = [example.text_pair for example in examples] if examples[0].text_pair is not None else None
    inputs = tokenizer(
        texts, pairs, padding=True, truncation=True, max_length=settings.sequence_length, return_tensors="pt"
    )
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=settings.precision == "mixed_bfloat16"):
        return model(**inputs, **more)


model.train()
for _ in range(settings.epochs):
    places = order.permutation(len(training))
    for start in range(0, len(training) - settings.batch_size + 1, settings.batch_size):
        rows = places[start : start + settings.batch_size]
        loss = run([training[row] for row in rows], labels=torch.tensor([labels[row] for row in rows])).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
model.eval()
with torch.no_grad():
    logits = [run(dev[start : start + 64]).logits.float().numpy() for start in range(0, len(dev), 64)]
rows = Features((), np.zeros(len(dev), np.int32), np.arange(len(dev)))  # one to an example, in order
scores = task.score(dev, task.decode({"logits": np.concatenate(logits)}, rows, dev))
print(json.dumps({"score": scores[task.main_metric]}))

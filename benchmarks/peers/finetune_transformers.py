"""Fine-tune a model directory with transformers on the task of a configuration, and print its scores.

    python -m benchmarks.peers.finetune_transformers CONFIG MODEL SEED [key=value ...]

Tables are read and predictions are scored as this package does it; model and loop are those of transformers and
PyTorch: rows padded to the longest of a batch, AdamW with linear decay after warm-up, clipping, autocast. Texts are
encoded by transformers' tokenizer; words with tags and contexts with questions, which are cut into windows, by this
package. Batches are those of this package where it does not group them by length: the same rows in the same order. With
`finetuning.accumulate_batches` a step is computed in as many parts of rows of similar length, and is the same step;
without it in one, as the loops of transformers do.
"""

import json
import os
import sys
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
import torch
import transformers

from keras_bert_flow.config.loading import load_config
from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.data.tasks import make_inputs, make_labels, shuffle_into_batches
from keras_bert_flow.tasks.core.task import Features
from keras_bert_flow.training.finetuning.task_data import read_task_files

MODELS = {
    "classification": transformers.BertForSequenceClassification,
    "regression": transformers.BertForSequenceClassification,
    "token_classification": transformers.BertForTokenClassification,
    "question_answering": transformers.BertForQuestionAnswering,
}
NAMES = {"input_ids": "token_ids", "token_type_ids": "segment_ids", "attention_mask": "padding_mask"}
WITHOUT_LOSS = -100  # what PyTorch's cross-entropy passes over
EVALUATION_ROWS = 64


class Texts:
    """Rows of texts and pairs of texts, encoded as they are asked for."""

    def __init__(self, folder, task, examples, length):
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        self.examples, self.length = examples, length
        label_ids = {name: number for number, name in enumerate(task.labels)}
        self.labels = [label_ids[example.label] if label_ids else float(example.label) for example in examples]
        # One to an example, in order: all that decoding asks.
        self.features = Features((), np.zeros(len(examples), np.int32), np.arange(len(examples)))
        self.lengths = np.array([len(example.text) + len(example.text_pair or "") for example in examples])
        self.weights = np.ones(len(examples))

    def __len__(self):
        return len(self.examples)

    def batch(self, rows):
        texts = [self.examples[row].text for row in rows]
        pairs = [self.examples[row].text_pair for row in rows]
        pairs = None if pairs[0] is None else pairs
        inputs = self.tokenizer(
            texts, pairs, padding=True, truncation=True, max_length=self.length, return_tensors="pt"
        )
        return dict(inputs), {"labels": torch.tensor([self.labels[row] for row in rows])}

    def gather(self, outputs):
        return {"logits": np.concatenate([output.logits.float().numpy() for output in outputs])}


class Windows:
    """Rows of pieces that this package has cut, with a label each, or the two ends of an answer."""

    def __init__(self, folder, task, examples, length):
        self.features = task.encode(read_tokenizer(Path(folder)), examples, length)
        self.lengths = self.features.lengths
        tags = self.features.labelled_tokens
        self.weights = tags if tags.any() else np.ones(len(self.lengths))

    def __len__(self):
        return len(self.features)

    def batch(self, rows):
        width = int(self.features.lengths[rows].max())
        inputs = make_inputs(self.features, rows, width)
        labels, weights = make_labels(self.features, rows, width, np.ones(len(rows), np.float32))
        if isinstance(labels, dict):
            targets = {"start_positions": labels["start"], "end_positions": labels["end"]}
        else:
            targets = {"labels": np.where(weights > 0, labels, WITHOUT_LOSS)}
        tensors = {name: torch.tensor(inputs[ours], dtype=torch.long) for name, ours in NAMES.items()}
        return tensors, {name: torch.tensor(values, dtype=torch.long) for name, values in targets.items()}

    def gather(self, outputs):
        names = (
            {"start": "start_logits", "end": "end_logits"} if "start" in self.features.labels else {"logits": "logits"}
        )
        rows = {name: [row for out in outputs for row in out[theirs].float().numpy()] for name, theirs in names.items()}
        lengths = self.features.lengths
        return {
            name: [row[:length] for row, length in zip(found, lengths, strict=True)] for name, found in rows.items()
        }


def load_model(folder, task, dropout_rate):
    rates = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")
    settings = dict.fromkeys(rates, dropout_rate)
    if task.kind != "question_answering":
        settings["num_labels"] = len(task.labels) or 1
    return MODELS[task.kind].from_pretrained(folder, ignore_mismatched_sizes=True, **settings)


def cut(rows, places, parts):
    """Yield the parts of a batch, the shortest texts first, and the share of each in the mean that is the loss."""
    places = places[np.argsort(rows.lengths[places], kind="stable")]
    total = rows.weights[places].sum()
    for part in np.array_split(places, parts):
        share = rows.weights[part].sum() / total
        if share > 0:
            yield part, share


def train(model, rows, settings, seed, run):
    steps = settings.epochs * -(-len(rows) // settings.batch_size)
    plain = ("bias", "LayerNorm.weight")
    groups = [
        {"params": [value for name, value in model.named_parameters() if name.endswith(plain)], "weight_decay": 0.0},
        {"params": [value for name, value in model.named_parameters() if not name.endswith(plain)]},
    ]
    optimizer = torch.optim.AdamW(
        groups, lr=settings.learning_rate, weight_decay=settings.weight_decay, eps=settings.epsilon
    )
    warmup_steps = int(settings.warmup_fraction * steps)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, warmup_steps, steps)
    model.train()
    for epoch in range(settings.epochs):
        rng = np.random.Generator(np.random.Philox(key=[seed, epoch]))  # as in `TaskBatches`
        for places in shuffle_into_batches(len(rows), settings.batch_size, rng):
            for part, share in cut(rows, places, settings.accumulate_batches or 1):
                inputs, labels = rows.batch(part)
                (run(**inputs, **labels).loss * share).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


def main() -> None:
    config_path, folder, seed, *overrides = sys.argv[1:]
    config = load_config(config_path, overrides)
    settings = config.finetuning
    torch.manual_seed(int(seed))
    files = read_task_files(config)
    task, training, dev = files.task, files.training, files.dev
    model = load_model(folder, task, settings.dropout_rate)
    rows_of = Texts if MODELS[task.kind] is transformers.BertForSequenceClassification else Windows

    def run(**inputs):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=settings.precision == "mixed_bfloat16"):
            return model(**inputs)

    train(model, rows_of(folder, task, training, settings.sequence_length), settings, int(seed), run)
    model.eval()
    rows = rows_of(folder, task, dev, settings.sequence_length)
    with torch.no_grad():
        starts = range(0, len(rows), EVALUATION_ROWS)
        outputs = [run(**rows.batch(np.arange(start, min(start + EVALUATION_ROWS, len(rows))))[0]) for start in starts]
    scores = task.score(dev, task.decode(rows.gather(outputs), rows.features, dev))
    print(json.dumps(scores))


if __name__ == "__main__":
    main()

"""Train a saved model for some steps on the backend of this process; as a command, print the losses as JSON."""

import json
import sys
from itertools import islice

from keras_bert_flow.data.pretraining import pretraining_dataset
from keras_bert_flow.models.pretraining.pretrainer import BertPretrainer
from keras_bert_flow.training.optimizers.factory import adamw


def train_steps(model, records, steps):
    pretrainer = BertPretrainer.from_preset(model, dropout_rate=0.0, attention_dropout_rate=0.0)
    pretrainer.compile(optimizer=adamw(learning_rate=0.003, total_steps=steps, warmup_steps=5, clip_norm=1.0))
    losses = []
    for x, y, weights in islice(pretraining_dataset(records, 8), steps):
        losses.append(float(pretrainer.train_on_batch(x, y, sample_weight=weights, return_dict=True)["loss"]))
        pretrainer.reset_metrics()
    return losses


if __name__ == "__main__":
    print(json.dumps(train_steps(sys.argv[1], sys.argv[2], int(sys.argv[3]))))

"""Pre-train and fine-tune with `model.fit`, on whichever backend KERAS_BACKEND names.

    kbf vocab   --input 'text/*.txt' --size 8000 --output out/vocabulary
    kbf records --input 'text/*.txt' --vocab out/vocabulary/vocab.txt --objective mlm --output out/records
    KERAS_BACKEND=jax python examples/pretrain_and_finetune.py out/records train.tsv dev.tsv out/model --steps 1000

The tables have the columns `text` and `label`, a header, and tabs between.
"""

import argparse
from pathlib import Path

import keras

import keras_bert_flow as kbf


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=Path)
    parser.add_argument("train", type=Path)
    parser.add_argument("dev", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--size", default="tiny")
    parser.add_argument("--steps", type=int, default=1000, help="of pre-training")
    parser.add_argument("--epochs", type=int, default=3, help="of fine-tuning")
    parser.add_argument("--batch-size", type=int, default=32)
    return parser.parse_args()


def pretrain(arguments: argparse.Namespace, records: kbf.PretrainingRecords, pieces: int) -> kbf.BertBackbone:
    """Train masked tokens, with Keras' own callbacks, and return the encoder."""
    backbone = kbf.BertBackbone.from_size(arguments.size, vocabulary_size=pieces, use_pooler=False)
    pretrainer = kbf.MaskedLM(backbone)
    warmup = arguments.steps // 10
    pretrainer.compile(optimizer=kbf.adamw(learning_rate=1e-3, warmup_steps=warmup, total_steps=arguments.steps))
    batches = kbf.pretraining_dataset(records, batch_size=arguments.batch_size, masking="dynamic")
    log = keras.callbacks.CSVLogger(arguments.output / "pretraining.csv")
    pretrainer.fit(batches, steps_per_epoch=arguments.steps, callbacks=[log], verbose=2)
    return backbone


def main() -> None:
    arguments = parse_arguments()
    arguments.output.mkdir(parents=True, exist_ok=True)
    keras.utils.set_random_seed(1)
    vocabulary = arguments.records / "vocab.txt"
    tokenizer = kbf.WordPieceTokenizer.from_file(vocabulary)
    backbone = pretrain(arguments, kbf.PretrainingRecords(arguments.records), tokenizer.vocabulary_size)

    task = kbf.make_task("classification")
    training, dev = task.read(arguments.train), task.read(arguments.dev)
    task = task.learn(training)
    encoded = {
        name: task.encode(tokenizer, rows, sequence_length=64) for name, rows in (("train", training), ("dev", dev))
    }
    classifier = kbf.TextClassifier(backbone, num_classes=len(task.labels), labels=task.labels, pooling="mean")
    steps = -(-len(training) // arguments.batch_size)
    optimizer = kbf.adamw(learning_rate=3e-4, warmup_steps=steps // 10, total_steps=steps * arguments.epochs)
    classifier.compile(optimizer=optimizer)
    batches = kbf.task_dataset(encoded["train"], batch_size=arguments.batch_size)
    classifier.fit(batches, steps_per_epoch=steps, epochs=arguments.epochs, verbose=2)

    answers = task.decode(kbf.predict_features(classifier, encoded["dev"]), encoded["dev"], dev)
    print({metric: round(value, 3) for metric, value in task.score(dev, answers).items()})
    classifier.save_to_preset(arguments.output / "model", vocabulary_path=vocabulary, task=task)
    print(kbf.load(arguments.output / "model").predict(dev[0].text))


if __name__ == "__main__":
    main()

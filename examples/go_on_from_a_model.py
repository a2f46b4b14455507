"""Go on pre-training a published encoder on a text of one's own, and compare what both say for a mask.

    KERAS_BACKEND=torch python examples/go_on_from_a_model.py MODEL 'text/*.txt' out --steps 200

MODEL is a model directory or hf://org/name; its tokenizer and its shape are taken over. The same as a configuration is
configs/minilm_imdb.yaml, with `kbf run`.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import keras_bert_flow as kbf


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("output", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--mask", default="the film was [MASK].")
    arguments = parser.parse_args()

    config = kbf.load_config(
        None,
        [
            f"initial_model={arguments.model}",
            f"corpus.input={arguments.text}",
            "records.objective=mlm",
            "records.duplication=1",
            "pretraining.masking=dynamic",
            f"pretraining.total_steps={arguments.steps}",
            f"pretraining.warmup_steps={arguments.steps // 10}",
            "pretraining.learning_rate=0.0003",
            "pretraining.precision=auto",
        ],
    )
    file = arguments.output / "config.yaml"
    arguments.output.mkdir(parents=True, exist_ok=True)
    file.write_text(config.model_dump_json())  # JSON is YAML
    inputs = []
    for command, option in (("vocab", "--vocab"), ("records", "--records"), ("pretrain", "--model")):
        run = [sys.executable, "-m", "keras_bert_flow", command, "--config", file, *inputs]
        run += ["--output", arguments.output / command]
        done = subprocess.run([*map(str, run)], check=True, stdout=subprocess.PIPE, text=True)
        inputs = [option, done.stdout.splitlines()[-1]]  # each command prints what it made
    for name, folder in (("before", arguments.model), ("after", arguments.output / "pretrain" / "model")):
        try:
            print(name, kbf.load(folder, task="fill_mask").predict([arguments.mask]))
        except ValueError as error:  # a model without a masked-LM head, such as a sentence embedder
            print(name, error)


if __name__ == "__main__":
    main()

"""Print what TF-IDF with a linear model scores on the dev table of tasks, as a Markdown table: the row of every report.

python benchmarks/word_baseline.py --config configs/tasks/cola.yaml --set task.train=TRAIN --set task.dev=DEV
"""

import argparse

from keras_bert_flow.config.loading import load_config
from keras_bert_flow.tasks.baselines.word_baseline import answer_from_words
from keras_bert_flow.training.finetuning.task_data import read_task_files


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True, nargs="+", help="YAML with the sections `task` and `finetuning`")
    parser.add_argument("--set", action="append", default=[], help="replace a setting; may be repeated")
    arguments = parser.parse_args()
    print("| task | rows | metric | score on dev | words of an n-gram | strength |\n|---|---:|---|---:|---:|---:|")
    for path in arguments.config:
        config = load_config(path, arguments.set)
        files = read_task_files(config)
        task = files.task
        found = answer_from_words(task, files.training, {"dev": files.dev}, config.seed)
        if found is None:
            print(f"| {config.task.name} | {len(files.training):,} | {task.main_metric} | no texts to label | | |")
            continue
        score = task.score(files.dev, found.predictions["dev"])[task.main_metric]
        chosen = found.settings
        print(
            f"| {config.task.name} | {len(files.training):,} | {task.main_metric} | {score:.3f} | "
            f"{chosen['longest']} | {chosen['strength']:g} |"
        )


if __name__ == "__main__":
    main()

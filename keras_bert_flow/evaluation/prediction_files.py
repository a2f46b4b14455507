"""Score a prediction file in the official format of its task, without a model and without Keras."""

from pathlib import Path

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.records.verification import verify
from keras_bert_flow.tasks.registry import make_task
from keras_bert_flow.training.finetuning.task_tables import fetch_tables


def score_predictions(config: PipelineConfig, path: str | Path) -> dict[str, float]:
    """Score predictions on the task's dev file.

    The file is `.jsonl`, one prediction per line with its texts, as written by `kbf predict --input`, in any order; or,
    by the kind of the task: SQuAD's JSON object of ids and answers (1.1, or 2.0 if a question has no answer); CoNLL
    columns, the word first and the predicted tag last; for classes and numbers GLUE's table of index and prediction.
    Labels are learnt from the training file if it exists, else from the dev file.

    Raises:
        FileNotFoundError: the predictions or the dev file are missing.
        ValueError: the predictions are not of these examples; the message names the file.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"Predictions must be in a file. Received: {path}, which is not one. Check the path.")
    config = fetch_tables(config)
    verify(path, config.task.train, config.task.dev)
    task = make_task(**config.task.arguments)
    examples = task.read(config.task.dev)
    task = task.learn(task.read(config.task.train) if Path(config.task.train).is_file() else examples)
    return task.score_file(path, examples)

"""Fine-tune a tiny model on a case of each kind of task, through all that a run does."""

import numpy as np
from safetensors.numpy import load_file

from keras_bert_flow.backends.runtime import seed_everything
from keras_bert_flow.config.loading import make_config
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.conversion.model_directory import save_model_directory
from keras_bert_flow.text.vocabulary import write_vocabulary
from keras_bert_flow.training.finetuning.task_data import TaskData
from keras_bert_flow.training.finetuning.task_runs import PRETRAINED, TaskRuns
from keras_bert_flow.training.loop.logs import read_log
from keras_bert_flow.training.pretraining.pretrainers import make_pretrainer
from tests.oracles.tiny_records import make_tiny_config
from tests.tasks.kinds import LETTERS, TOKENIZER, make_case

ROWS = 29  # batches of 8: the last of a pass has 5, and one of its parts is all filler
LENGTH = 32
SETTINGS = {
    "batch_size": 8,
    "epochs": 2,
    "sequence_length": LENGTH,
    "learning_rate": 0.003,
    "warmup_fraction": 0,
    "dropout_rate": 0,
    "clip_norm": 0.1,  # less than the norms, and that of the mean of the parts, not of each
    "max_widths": 2,
    "group_by_length": True,
    "accumulate_batches": 1,
    "epsilon": 1e-6,
}
OF_ANY_LENGTH = {"group_by_length": False}


def write_tiny_model(folder):
    """Write a pre-trainer with random weights; return its model directory."""
    write_vocabulary(folder / "vocab.txt", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS])
    seed_everything(5)
    pretrainer = make_pretrainer(make_tiny_config({"max_positions": LENGTH}).model, 5 + len(LETTERS))
    save_model_directory(pretrainer, folder / "model", folder / "vocab.txt")
    return folder / "model"


def finetune_case(model, folder, name, report=lambda line: None, seeds=(1,), rows=ROWS, tokenizer=TOKENIZER, **changes):
    """Fine-tune on a case, once per seed; return the weights of each run, and the losses of the first."""
    case, table = make_case(name, rows), str(model / "config.json")  # as good as any: examples are drawn, not read
    values = {"task": {"name": name, "train": table, "dev": table}, "finetuning": SETTINGS | changes}
    train, dev = (case.task.encode(tokenizer, examples, LENGTH) for examples in (case.training, case.dev))
    config = make_config(PipelineConfig, values, "task")
    runs = TaskRuns(config, model, tokenizer, TaskData(case.task, train, case.dev, dev), report, ())
    for seed in seeds:
        runs.finish(folder / PRETRAINED / f"seed-{seed}", PRETRAINED, seed)
    folders = [folder / PRETRAINED / f"seed-{seed}" for seed in seeds]
    weights = [load_file(run / "model" / "model.safetensors") for run in folders]
    return weights, [line["loss"] for line in read_log(folders[0])]


def largest_difference(some, others):
    assert some.keys() == others.keys()
    return max(float(np.abs(some[name] - others[name]).max()) for name in some)

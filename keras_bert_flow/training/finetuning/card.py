"""Model card of a fine-tuned model: task, training recipe and scores."""

from collections.abc import Mapping
from typing import Any

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.conversion.model_card import Card, describe_machine
from keras_bert_flow.tasks.core.cut_texts import describe_cut
from keras_bert_flow.training.finetuning.task_data import TaskData

RECIPE = ("optimizer", "learning_rate", "epochs", "batch_size", "sequence_length", "layer_decay", "precision")
PARTIAL = ("frozen_layers", "lora_rank", "lora_alpha", "lora_targets")  # settings of runs that train some weights only


def describe_run(config: PipelineConfig, data: TaskData, run: Mapping[str, Any]) -> Card:
    """Return the model card of a fine-tuned model; the scores of other runs are in the report.

    Args:
        config: of the run, with a task.
        data: the training and dev data.
        run: content of `run.json`: start, seed, seconds and score.
    """
    settings, task = config.finetuning.model_dump(mode="json"), data.task
    facts = [
        ["task", config.task.name],
        ["kind", task.kind.replace("_", " ")],
        ["started from", f"{run['start']} weights" if run["start"] == "random" else "a pre-trained model"],
        ["examples to train on", f"{len(data.train):,}"],
        ["examples of the dev table", f"{len(data.dev_examples):,}"],
    ]
    if cut := describe_cut(data.texts.get("train", {})):
        facts.append(["training texts that are cut", cut])
    names = (*RECIPE, *(name for name in PARTIAL if settings["lora_rank" if "lora" in name else name] is not None))
    recipe = [[name.replace("_", " "), _show(settings[name])] for name in names] + [["seed", str(run["seed"])]]
    recipe.append(["trained parameters", f"{run['trained_parameters']:,} of {run['parameters']:,}"])
    score = [[task.main_metric.replace("_", " "), f"{run['score']:.4f}"]]
    if data.guess_score is not None:
        score.append(["of the commonest answer to the training table", f"{data.guess_score:.4f}"])
    if data.word_score is not None:
        score.append([f"of {task.word_baseline}, fitted on the same labels", f"{data.word_score:.4f}"])
    if found := run.get("calibration"):
        score.append(["temperature of the probabilities, chosen there", f"{found['temperature']:.3f}"])
        if biases := found["biases"]:
            score.append(["biases of the classes, chosen there", ", ".join(f"{bias:.3f}" for bias in biases)])
        errors = f"{found['error_before']:.4f} before it, {found['error_after']:.4f} with it"
        score.append(["expected calibration error", errors])
    sections = (("Task", facts), ("Training", recipe), ("Score on the dev table", score))
    return Card(config.task.name, (*sections, describe_machine(run["seconds"])))


def _show(setting: Any) -> str:
    return ", ".join(setting) if isinstance(setting, list) else str(setting)

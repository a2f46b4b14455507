"""Check a whole run before its first stage starts."""

from collections.abc import Sequence
from pathlib import Path

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.extras import check_backend, check_installed
from keras_bert_flow.local_paths import find_address
from keras_bert_flow.outputs import check_place
from keras_bert_flow.preflight.distillation import check_distillation
from keras_bert_flow.preflight.stages import (
    check_corpus,
    check_finetuning,
    check_label_words,
    check_minimal_pairs,
    check_model,
    check_names,
    check_objectives,
    check_pattern,
    check_predictions,
    check_scored_model,
    check_sequences,
    check_task,
    check_tokenizer,
    packages_of,
)
from keras_bert_flow.stores.publishing import check_writable
from keras_bert_flow.training.finetuning.task_data import TaskFiles

STAGES = ("vocabulary", "records", "pretraining", "finetuning", "evaluation")


def check_run(config: PipelineConfig, stages: Sequence[str] = STAGES, packages: Sequence[str] = ()) -> TaskFiles | None:
    """Check all inputs of a configuration's stages, the cheapest checks first.

    Reading the tables of a task takes most of the time, about 4 s for a million rows: `benchmarks/preflight.py`.

    Args:
        stages: the stages to run.
        packages: packages needed besides those of the stages.
    Returns:
        The task's files if a stage needs them; None for the built-in task.
    Raises:
        FileNotFoundError, OSError, ValueError: an error that would end a stage, with the same message.
    """
    check_backend(config.backend)
    check_installed([*packages, *packages_of(config, stages)])
    check_runs(config.runs)
    if "vocabulary" in stages or "records" in stages:
        check_names(config.runs)
        check_pattern(config.runs)
    if "pretraining" in stages:
        check_model(config)
        check_objectives(config)
        check_distillation(config)
    if "vocabulary" in stages and config.vocabulary.file is not None:
        check_tokenizer(config, config.vocabulary.file, "records" in stages)
        if "finetuning" in stages:
            check_label_words(config, Path(config.vocabulary.file))
    if "records" in stages:
        check_predictions(config)
        check_sequences(config)
    if "vocabulary" in stages or "records" in stages:
        check_corpus(config, makes_records="records" in stages)
    if "pretraining" in stages and "finetuning" in stages:
        check_finetuning(config)
    if "evaluation" in stages:
        check_scored_model(config)
        check_minimal_pairs(config)
    return check_task(config) if "finetuning" in stages or "evaluation" in stages else None


def check_runs(runs: str) -> None:
    """Check that results can be written to the folder of a run, local or remote."""
    if find_address(runs):
        check_writable(runs)
    else:
        check_place(Path(runs) / "x")

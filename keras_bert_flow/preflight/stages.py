"""Check what one stage of a run is given: paths, tables, vocabulary, packages, devices."""

from collections.abc import Sequence
from pathlib import Path

from keras_bert_flow.config import PipelineConfig
from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.distribution.batches import check_devices
from keras_bert_flow.extras import check_backend, check_installed
from keras_bert_flow.layers.head_sizes import check_heads
from keras_bert_flow.models.sizes import get_size
from keras_bert_flow.outputs import check_output
from keras_bert_flow.preflight.models import check_model_directory
from keras_bert_flow.records.checking import check_positions
from keras_bert_flow.records.manifest import check_folder
from keras_bert_flow.settings import BUILTIN
from keras_bert_flow.text.inputs import check_inputs, packages_for
from keras_bert_flow.text.storage import LOCAL, Storage, is_remote
from keras_bert_flow.text.vocabulary import read_vocabulary
from keras_bert_flow.training.task_data import (
    TaskData,
    TaskFiles,
    check_task_files,
    check_task_length,
    read_task_data,
)

BEAM = "apache_beam"


def check_corpus(config: PipelineConfig, storage: Storage | None = None) -> list[str]:
    """Check that the corpus is there and can be read, and return its files.

    Args:
        storage: reaches text at other places; None where those are not to be looked at.
    Raises:
        FileNotFoundError, ValueError: it is not, or a package that reads it is missing.
    """
    patterns = [pattern for pattern in config.corpus.input if pattern != BUILTIN]
    if storage is None:
        patterns = [pattern for pattern in patterns if not is_remote(pattern)]
    if not patterns:
        return []
    files = check_inputs(patterns, storage or LOCAL, config.corpus.skip_bad_inputs)
    check_installed(packages_for(files))
    return files


def check_vocabulary_stage(config: PipelineConfig, output: Path) -> None:
    """Check what `kbf vocab` is given."""
    check_installed([BEAM])
    check_output(output)
    if config.vocabulary.file is None:
        check_corpus(config)
    else:
        read_vocabulary(config.vocabulary.file)


def check_records_stage(config: PipelineConfig, vocabulary: Path, output: Path) -> None:
    """Check what `kbf records` is given."""
    check_installed([BEAM])
    check_output(output)
    read_vocabulary(vocabulary)
    check_corpus(config)


def check_pretraining_stage(config: PipelineConfig, records: Path, output: Path) -> None:
    """Check what `kbf pretrain` is given."""
    check_output(output)
    check_model(config)
    length = check_folder(records, "records", digests=False).config.get("sequence_length")
    if isinstance(length, int):
        check_positions(length, config.model.max_positions)


def check_finetuning_stage(config: PipelineConfig, model: Path, output: Path) -> TaskData | None:
    """Check what `kbf finetune` is given, and return the task as the model reads it; None of the built-in task."""
    check_output(output)
    settings = check_model_directory(model)
    check_task_length(config.finetuning.sequence_length, settings["max_positions"])
    return None if config.task.train == BUILTIN else read_task_data(config, read_tokenizer(model))


def check_report_stage(
    config: PipelineConfig, finetuned: Path, pretrained: Path, records: Path, first_phase: Path | None, output: Path
) -> TaskFiles | None:
    """Check what `kbf report` is given, and return the task's files; None of the built-in task."""
    check_output(output)
    inputs = [(finetuned, "finetuning"), (pretrained, "pretraining"), (records, "records")]
    for folder, stage in (*inputs, *([(first_phase, "pretraining")] if first_phase else ())):
        check_folder(folder, stage, digests=False)
    return check_task(config)


def check_model(config: PipelineConfig) -> None:
    """Check that the backend is installed, that the network can be built, and that batches divide over its devices."""
    check_backend(config.backend)
    sizes = get_size(config.model.size)
    given = {name: getattr(config.model, name) for name in sizes}
    sizes |= {name: value for name, value in given.items() if value is not None}
    check_heads(sizes["hidden_dim"], sizes["num_heads"])
    check_devices(config, config.backend)


def check_task(config: PipelineConfig) -> TaskFiles | None:
    """Check every file of the task, and return what they hold; None of the built-in task."""
    return None if config.task.train == BUILTIN else check_task_files(config)


def packages_of(config: PipelineConfig, stages: Sequence[str]) -> list[str]:
    """Return the packages that stages need beyond those that are always installed."""
    needs_text = "vocabulary" in stages or "records" in stages
    packages = [BEAM] if needs_text else []
    return packages + ([config.backend] if {"pretraining", "finetuning", "evaluation"} & {*stages} else [])

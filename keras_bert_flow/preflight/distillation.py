"""Check the inputs of a distillation: student, teacher and records."""

from pathlib import Path
from typing import Any

from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.conversion.directory_check import check_masked_lm
from keras_bert_flow.data.record_vocabulary import check_record_vocabulary
from keras_bert_flow.extras import check_installed
from keras_bert_flow.models.families.registry import find_family
from keras_bert_flow.models.sizes import resolve_shape
from keras_bert_flow.models.teacher_fit import check_start, check_teacher
from keras_bert_flow.outputs import check_output
from keras_bert_flow.preflight.models import check_initial_model
from keras_bert_flow.preflight.stages import check_model
from keras_bert_flow.records.checking import check_positions, check_records
from keras_bert_flow.text.cutting import check_cutting
from keras_bert_flow.text.objectives.registry import DEFAULT, find_objective
from keras_bert_flow.text.tokenizers.files import find_tokenizer_file, read_tokenizer_file
from keras_bert_flow.training.pretraining.objective_fit import check_padding


def check_distillation_stage(config: PipelineConfig, records: Path, teacher: Path, output: Path) -> None:
    """Check the inputs of `kbf distill`."""
    check_output(output)
    check_installed(config.loggers)
    if config.distillation is None:
        raise ValueError(
            "There must be a section `distillation` for a student. Received: none. Write one, or use --set "
            "distillation.start=teacher for its defaults."
        )
    made, student = check_records(records).config, config.student
    check_model(student)
    length = student.pretraining.sequence_length or made["sequence_length"]
    check_cutting(made.get("objective", DEFAULT), made["sequence_length"], length)
    check_positions(length, student.model.max_positions)
    check_teacher_directory(config, teacher)
    check_padding(student.model, read_tokenizer_file(find_tokenizer_file(records)))
    check_record_vocabulary(find_tokenizer_file(records), made["vocabulary_size"], find_tokenizer_file(teacher))


def check_distillation(config: PipelineConfig) -> None:
    """Check that the student of a run, if any, can be built and can be distilled from its teacher."""
    if config.distillation is None:
        return
    check_model(config.student)
    if config.distillation.teacher is not None:
        check_teacher_directory(config, Path(config.distillation.teacher))
        return
    size, last = config.vocabulary.size, config.phases[-1].records
    _check_student(config, resolve_shape(config.model, size), size)
    if find_objective(last.objective).has_generator:
        raise ValueError(
            f"A teacher must have a masked-LM head. Received: records.objective={last.objective}, of which a detector "
            "comes. Use mlm."
        )


def check_teacher_directory(config: PipelineConfig, teacher: Path) -> None:
    """Check that a model directory can be the teacher of a configuration's student."""
    check_initial_model(teacher)
    found = dict(check_masked_lm(teacher))
    _check_student(config, find_family(found.pop("family")).shape(**found), found["vocabulary_size"])


def _check_student(config: PipelineConfig, teacher: Any, vocabulary_size: int) -> None:
    """Check the student against the shape of its teacher."""
    settings = config.needed_distillation
    student = resolve_shape(settings.student, vocabulary_size)
    check_teacher(student, teacher, settings.hidden_state_weight)
    if settings.start == "teacher":
        check_start(student, teacher)

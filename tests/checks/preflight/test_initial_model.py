"""A configuration that goes on from a model has its shape and its tokenizer, or is refused in one line."""

import json
from functools import partial

import pytest

from keras_bert_flow.checks.run import (
    check_shared_tokenizer,
    check_teacher_directory,
    fetch_inputs,
    resolve_initial_model,
)
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.models.sizes import resolve_shape
from keras_bert_flow.text.tokenizers.files import read_tokenizer_file
from tests.oracles.tiny_model import INTERMEDIATE, PIECES, TINY_SHAPE, write_tiny_model

LENGTHS = {"records": {"sequence_length": 32, "max_predictions": 4}, "finetuning": {"sequence_length": 32}}


@pytest.fixture
def model(tmp_path):
    return write_tiny_model(tmp_path / "model")


def resolve(initial_model, **sections):
    return resolve_initial_model(PipelineConfig(initial_model=str(initial_model), **LENGTHS | sections))


def test_shape_and_tokenizer_are_those_of_the_model(model):
    (model / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    resolved = resolve(model, model={"dropout_rate": 0.2}, vocabulary={"size": 99})
    shape = resolve_shape(resolved.model, len(PIECES))
    assert {name: getattr(shape, name) for name in TINY_SHAPE} == TINY_SHAPE
    assert (shape.num_layers, resolved.model.dropout_rate) == (1, 0.2)
    assert resolved.vocabulary.file == str(model / "vocab.txt") and resolved.vocabulary.cased
    assert resolve_initial_model(resolved) == resolved  # as a child process does


def test_nothing_changes_without_a_model():
    config = PipelineConfig(**LENGTHS)
    assert resolve_initial_model(config) is config


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"model": {"num_layers": 2}}, "model.num_layers=2, where it has 1"),
        ({"model": {"size": "mini"}}, "model.num_layers=4, where it has 1"),
        ({"model": {"family": "electra"}}, "model.family=electra, where it has bert"),
        ({"model": {"options": {"embedding_dim": 3}}}, "model.embedding_dim=3, where it has no such field"),
        ({"vocabulary": {"file": "other/vocab.txt"}}, "vocabulary.file=other/vocab.txt, another one"),
        ({"records": {"sequence_length": 65, "max_predictions": 4}}, "^.*records.sequence_length.*max_positions=64"),
    ],
)
def test_what_contradicts_the_model_is_refused(model, sections, words):
    with pytest.raises(ValueError, match=words):
        resolve(model, **sections)


@pytest.mark.parametrize("check", [resolve, partial(check_teacher_directory, None)])
def test_adapter_is_no_model_to_begin_from_or_learn_from(tmp_path, check):
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ValueError, match="Training must begin from a whole model.*`kbf convert ADAPTER MODEL`"):
        check(tmp_path)


def test_model_that_is_not_whole_is_refused(model):
    (model / "vocab.txt").write_text("[PAD]\n")
    with pytest.raises(ValueError, match=r"vocab\.txt"):
        resolve(model)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        resolve(model.with_name("nowhere"))


def test_model_and_a_teacher_are_refused(model):
    teacher = {"teacher": "t", "student": {"intermediate_dim": INTERMEDIATE}}
    with pytest.raises(ValueError, match="must not go with `distillation.teacher`"):
        resolve(model, distillation=teacher)


def test_teacher_brings_its_tokenizer(model):
    (model / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    fetched = fetch_inputs(PipelineConfig(distillation={"teacher": str(model)}, **LENGTHS))
    assert fetched.vocabulary.file == str(model / "vocab.txt") and fetched.vocabulary.cased
    assert fetch_inputs(fetched) == fetched
    check_shared_tokenizer(fetched, read_tokenizer_file(model / "vocab.txt"))


def test_other_vocabulary_than_that_of_the_teacher_is_refused(model):
    (other := model.with_name("other.txt")).write_text("\n".join([*PIECES, "more"]) + "\n")
    config = PipelineConfig(distillation={"teacher": str(model)}, vocabulary={"file": str(other)}, **LENGTHS)
    assert fetch_inputs(config).vocabulary.file == str(other)
    with pytest.raises(ValueError, match="must be the tokenizer of `distillation.teacher`.*other pieces"):
        check_shared_tokenizer(config, read_tokenizer_file(other))

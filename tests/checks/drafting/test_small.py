"""Students that `kbf init --small` drafts: which fit a wish, what they weigh, and how the time is divided."""

import math
import os
import re
from dataclasses import replace

import pytest

import keras_bert_flow as kbf
from keras_bert_flow.checks import draft_student
from keras_bert_flow.checks.draft_budget import FIXED_MINUTES, choose_budget, look_at_corpus
from keras_bert_flow.checks.draft_student import (
    Wish,
    choose_student,
    count_parameters,
    count_text_tokens,
    list_students,
    read_wish,
)
from keras_bert_flow.checks.draft_table import DraftedTask
from keras_bert_flow.cli import data_commands
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.config.pretraining import ModelConfig
from keras_bert_flow.export.timing import find_first, time_model
from keras_bert_flow.models.sizes import check_start, check_teacher, resolve_shape
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES, write_vocabulary
from tests.commands import kbf as run_kbf
from tests.test_cli import TEXT

TASK = DraftedTask("classification", {}, {}, lengths=(4, 10, 10, 10, 200))
RATE = 2e10


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "t.tsv"
    path.write_text("text\tlabel\n" + "".join(f"a film number {n}\t{'ab'[n % 2]}\n" for n in range(100)))
    return path


@pytest.mark.parametrize(
    ("text", "wish"),
    [
        ("20MB", Wish(20.0, "MB")),
        (" 2.5 mb ", Wish(2.5, "MB")),
        (".5ms-int8", Wish(0.5, "ms", "-int8")),
        ("3ms-onnx", Wish(3.0, "ms", "-onnx")),
    ],
)
def test_wish_is_read(text, wish):
    assert read_wish(text) == wish and read_wish(str(wish)) == wish


@pytest.mark.parametrize("text", ["0MB", "0.0ms", "-3ms", "3", "MB", "3kB", "3 s", "3MB-int4", "", "infMB", "1e3MB"])
def test_wish_that_says_nothing_is_refused(text):
    with pytest.raises(ValueError, match=re.escape(f"Received: {text!r}. Try 20MB.")):
        read_wish(text)


@pytest.mark.parametrize("sizes", [{}, {"hidden_dim": 200, "num_heads": 4, "intermediate_dim": 800}])
def test_students_fit_the_rules_of_their_teacher(sizes):
    """What `kbf distill` checks before its work holds for each of them, and none is as large as the teacher."""
    teacher = resolve_shape(ModelConfig(size="medium", max_positions=128, **sizes), 4000)
    students = list_students(teacher, "", 32)
    assert len({(one.model["num_layers"], one.model["hidden_dim"]) for one in students}) == len(students)
    for student in students:
        shape = resolve_shape(ModelConfig(**student.model), 4000)
        check_teacher(shape, teacher, 0.0 if student.is_narrow else 1.0, 1.0, 1.0)
        if not student.is_narrow:
            check_start(shape, teacher)
        assert student.parameters < count_parameters(teacher)[0]
    assert [one.parameters for one in students] == sorted((one.parameters for one in students), reverse=True)
    assert {one.model["num_layers"] for one in students} == {1, 2, 4, 8}


@pytest.mark.parametrize("model", [{"family": "bert"}, {"family": "distilbert", "num_layers": 1}])
def test_parameters_and_bytes_are_those_of_the_published_classifier(tmp_path, model):
    config = ModelConfig(**model, size="tiny", max_positions=128)
    shape = resolve_shape(config, 1000)
    names = ("num_layers", "hidden_dim", "num_heads", "intermediate_dim", "max_positions")
    sizes = {name: getattr(shape, name) for name in names}
    backbone = kbf.Backbone(model["family"], use_pooler=True, vocabulary_size=1000, **sizes)
    classifier = kbf.TextClassifier(backbone, num_classes=2)
    assert count_parameters(shape)[0] == classifier.count_params()
    write_vocabulary(tmp_path / "vocab.txt", [*SPECIAL_PIECES, *(f"w{number}" for number in range(995))])
    classifier.save_to_preset(tmp_path / "model", vocabulary_path=tmp_path / "vocab.txt")
    file_bytes = (tmp_path / "model" / "model.safetensors").stat().st_size
    assert draft_student._measure(config.model_dump(), 1000, "", 32).megabytes * 1e6 == pytest.approx(file_bytes, 0.01)


def choose(wish, corpus, minutes=30):
    look = look_at_corpus([str(corpus)])
    budget = choose_budget(minutes, look, TASK, 1000, RATE, 100, has_student=True)
    return choose_student(read_wish(wish), budget, look, TASK, "torch", RATE), budget


def test_student_of_a_size_is_the_largest_that_fits(corpus):
    _, budget = choose("100MB", corpus)
    teacher = resolve_shape(ModelConfig(size=budget.size, max_positions=128), budget.vocabulary_size)
    sizes = [one.megabytes for one in list_students(teacher, "", 32)]
    for limit in (sizes[0] + 0.001, (sizes[1] + sizes[2]) / 2, sizes[-1]):
        student, _ = choose(f"{limit:.6f}MB", corpus)
        assert student.megabytes == max(size for size in sizes if size <= limit + 1e-6)
        assert student.steps >= 20 and not student.is_teacher
    assert choose("100MB", corpus)[0].is_teacher
    with pytest.raises(ValueError, match=r"must have room for the smallest student .* takes .* MB\. Ask for more"):
        choose(f"{0.9 * sizes[-1]:.6f}MB", corpus)


def test_int8_weighs_less_by_three_bytes_a_weight_of_a_product(corpus):
    teacher = resolve_shape(ModelConfig(size="tiny", max_positions=128), 4000)
    for full, small in zip(list_students(teacher, "-onnx", 32), list_students(teacher, "-int8", 32), strict=True):
        shape = resolve_shape(ModelConfig(**full.model), 4000)
        assert full.megabytes - small.megabytes == pytest.approx(3e-6 * count_parameters(shape)[1])


def test_student_of_a_latency_is_the_first_that_was_fast_enough(corpus, monkeypatch):
    asked = []

    def time_students(students, wish, length, backend):
        asked.append((students, length, backend))
        return (None, 0.009) if wish.amount < 1 else (1, 0.0015)

    monkeypatch.setattr(draft_student, "time_students", time_students)
    student, budget = choose("2ms", corpus)
    (students, length, backend), _ = asked[0], None
    assert (length, backend) == (17, "torch") and student.text_tokens == 17  # 1.4 pieces for each of ten words, and 3
    assert student.milliseconds == 1.5 and student.arguments(budget.vocabulary_size) == students[1]
    assert students[0]["num_layers"] * students[0]["hidden_dim"] == 256  # the drafted model comes first: 2 × 128
    with pytest.raises(ValueError, match=r"takes 9 ms here\. Ask for more, or for 0\.1ms-onnx\."):
        choose("0.1ms", corpus)


def test_text_of_the_table_has_its_median_words():
    assert count_text_tokens(TASK, 128) == 17
    assert count_text_tokens(TASK, 16) == 16
    assert count_text_tokens(replace(TASK, lengths=()), 128) == 128


@pytest.mark.parametrize("count", [1, 2, 7, 16])
def test_few_models_are_measured(count):
    for first in range(count + 1):
        measured = []

        def measure(index, first=first, measured=measured):
            measured.append(index)
            return 2.0 if index < first else 1.0

        index, seconds = find_first(count, measure, 1.0)
        assert (index, seconds) == ((first, 1.0) if first < count else (None, 2.0))
        assert len(measured) <= math.ceil(math.log2(count + 1)) and len({*measured}) == len(measured)


@pytest.mark.parametrize("minutes", [6, 30, 600])
def test_minutes_hold_with_a_student(corpus, minutes):
    look = look_at_corpus([str(corpus)])
    alone, taught = (choose_budget(minutes, look, TASK, 1000, RATE, 100, has_student=has) for has in (False, True))
    total = 2 * taught.pretraining_minutes + taught.finetuning_minutes
    assert total + FIXED_MINUTES <= minutes
    assert taught.size == alone.size and taught.pretraining_minutes == pytest.approx(alone.pretraining_minutes / 2, 0.1)


def draft(corpus, table, output, small, monkeypatch):
    monkeypatch.setattr("keras_bert_flow.checks.estimates.measure_rate", lambda: RATE)
    data_commands.init([str(corpus)], table, output, small=small)
    return load_config(output)


def test_draft_with_a_student_distils_it(tmp_path, corpus, table, monkeypatch, capsys):
    config = draft(corpus, table, tmp_path / "narrow.yaml", "1.5MB", monkeypatch)
    told = capsys.readouterr().err
    student = config.distillation.student
    assert config.distillation.start == "random" and config.distillation.compares_layers
    assert student.dropout_rate == config.model.dropout_rate and student.max_positions == config.model.max_positions
    assert f"--small 1.5MB: a student of {student.num_layers} layer" in told and "model.safetensors of about" in told
    assert config.student.pretraining.minutes == config.pretraining.minutes
    assert config.distillation.total_steps == config.student.pretraining.total_steps

    config = draft(corpus, table, tmp_path / "wide.yaml", "3.2MB", monkeypatch)
    assert (config.distillation.start, config.distillation.student.family) == ("teacher", "distilbert")
    assert config.distillation.hidden_state_weight == 1.0 and not config.distillation.compares_layers

    config = draft(corpus, table, tmp_path / "whole.yaml", "500MB", monkeypatch)
    assert config.distillation is None and "the model itself fits" in capsys.readouterr().err
    config_without = draft(corpus, table, tmp_path / "plain.yaml", None, monkeypatch)
    assert config.pretraining == config_without.pretraining


def test_impossible_wish_writes_nothing(tmp_path, corpus, table, monkeypatch):
    for small in ("0MB", "3 litres", "0.001MB"):
        with pytest.raises(ValueError, match="`--small` must"):
            draft(corpus, table, tmp_path / "new" / "mine.yaml", small, monkeypatch)
    assert not (tmp_path / "new").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.tsv", "text.txt"]


@pytest.mark.slow
def test_command_drafts_what_the_plan_takes(tmp_path, corpus, table):
    """Times students in the process of its own, on the backend of the draft."""
    arguments = ("init", corpus, "--task", table, "--output")
    status, _, error = run_kbf(*arguments, tmp_path / "a.yaml", "--small", "0.001ms")
    assert status == 2 and "ms here. Ask for more, or for 0.001ms-onnx." in error.splitlines()[-1], error
    assert not (tmp_path / "a.yaml").exists()
    status, _, error = run_kbf(*arguments, tmp_path / "b.yaml", "--small", "10000ms")
    assert status == 0 and "the model itself fits" in error, error
    status, _, error = run_kbf(*arguments, tmp_path / "c.yaml", "--small", "1.5MB")
    assert status == 0, error
    status, printed, error = run_kbf("run", tmp_path / "c.yaml", "--plan", "--set", f"runs={tmp_path / 'runs'}")
    assert status == 0 and "Distillation: " in printed, error


@pytest.mark.slow
@pytest.mark.parametrize("form", ["", "-int8"])
def test_larger_models_take_longer(form):
    if form:
        pytest.importorskip("onnxscript")
        pytest.importorskip("onnxruntime")
        if os.environ.get("KERAS_BACKEND") != "torch":
            pytest.skip("one backend that writes ONNX is enough")
    small = {"family": "bert", "num_heads": 2, "vocabulary_size": 100, "num_layers": 1, "hidden_dim": 32}
    small |= {"intermediate_dim": 128, "max_positions": 64}
    large = small | {"num_layers": 6, "hidden_dim": 256, "intermediate_dim": 1024}
    assert 0 < time_model(small, 32, form) < time_model(large, 32, form)

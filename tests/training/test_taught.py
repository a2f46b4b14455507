"""Fine-tuning with a teacher: its predictions, its layers before them, over kills, and what is refused."""

import json
from dataclasses import replace

import keras
import numpy as np
import pytest

import keras_bert_flow as kbf
from keras_bert_flow.checks.stages import check_finetuning, check_finetuning_stage
from keras_bert_flow.config.loading import load_config
from keras_bert_flow.conversion.model_directory import save_model_directory
from keras_bert_flow.models.defaults import are_distributions
from keras_bert_flow.results.stages.tasks import finetuning_key, finetuning_settings
from keras_bert_flow.tasks.core.task import Features
from keras_bert_flow.text.tokenizers.files import read_tokenizer_file
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES, write_vocabulary
from keras_bert_flow.training.finetuning.finetune import finetune
from keras_bert_flow.training.finetuning.teaching import take_predictions
from keras_bert_flow.training.loop.identity import finetuning_identity
from keras_bert_flow.training.loop.logs import read_log
from tests.training.separable_task import WORDS, make_task_config, weights_of

pytestmark = pytest.mark.any_backend

RUN = "pretrained/seed-1"
SHORT = {"epochs": 2, "compare_random": False, "dropout_rate": 0.1}
WIDE = {"num_layers": 2, "hidden_dim": 24, "num_heads": 2, "intermediate_dim": 32, "max_positions": 16}


@pytest.fixture(scope="module")
def teacher(place):
    """A classifier of two layers that is wider than the model of one, with random weights and sharp predictions."""
    backbone = kbf.Backbone("bert", vocabulary_size=50, **WIDE)
    model = kbf.TextClassifier(backbone, labels=["no", "yes"])
    rng = np.random.default_rng(0)
    for weight in model.weights:
        if len(weight.shape) > 1:
            weight.assign(rng.normal(0, 0.3, weight.shape))
    save_model_directory(model, place / "teacher", place / "vocab.txt")
    return place / "teacher"


def make_config(place, teacher, **settings):
    return make_task_config(place, teacher=str(teacher), **SHORT | settings)


class Killed(BaseException):
    pass


def test_labels_become_the_predictions_of_the_teacher(teacher):
    model = kbf.TextClassifier.from_preset(teacher, dropout_rate=0.0)
    ids = [np.array(row, "int32") for row in ([2, 7, 8, 3], [2, 9, 3], [2, 20, 21, 22, 3])]
    features = Features(ids, np.array([4, 3, 5]), np.arange(3), {"logits": np.array([0, 1, 1])})
    taught = take_predictions(features, model, 4).labels["logits"]
    for row, shares in zip(ids, taught, strict=True):
        inputs = {"token_ids": row[None], "segment_ids": row[None] * 0, "padding_mask": row[None] * 0 + 1}
        logits = model.predict(inputs, verbose=0)[0].astype("float64")
        np.testing.assert_allclose(shares, np.exp(logits) / np.exp(logits).sum(), rtol=1e-5)
    numbers = replace(features, labels={"logits": np.array([0.5, 1.0, 2.0])})
    assert take_predictions(numbers, model, 4) is numbers  # the loss of a regression is that of its labels


def test_labels_of_an_open_number_of_classes_are_told_by_their_type():
    """TensorFlow does not know the shapes of batches of several widths."""
    logits, classes = keras.KerasTensor((None, 2)), keras.KerasTensor((None, None, 9))
    assert are_distributions(keras.KerasTensor((None, None)), logits)
    assert are_distributions(keras.KerasTensor((None, 2)), logits)
    for labels, outputs in (((None, None), logits), ((None,), logits), ((None, None), classes), ((None, 1), logits)):
        assert not are_distributions(keras.KerasTensor(labels, "int32"), outputs)
    assert not are_distributions(keras.KerasTensor((None, None)), keras.KerasTensor((None, 1)))


@pytest.mark.slow
def test_student_learns_what_its_teacher_answers_and_not_the_labels(place, tmp_path, teacher):
    config = make_config(place, teacher, seeds=(1,), epochs=12)
    output = finetune(config, place / "model", tmp_path / "out", lambda line: None)
    assert not (output / RUN / "layers").exists()
    texts = [line.split("\t")[0] for line in (place / "dev.tsv").read_text().splitlines()[1:]]
    student, known = (
        kbf.TextClassifier.from_preset(folder).predict(texts, verbose=0).argmax(-1)
        for folder in (output / RUN / "model", teacher)
    )
    assert 0 < known.mean() < 1 and (student == known).mean() >= 0.8


@pytest.mark.parametrize("killed_in", ["layers", "predictions"])
@pytest.mark.slow
def test_killed_run_ends_in_the_same_bits(place, tmp_path, teacher, killed_in):
    config, lines = make_config(place, teacher, layer_epochs=2, seeds=(1, 2)), []
    whole = finetune(config, place / "model", tmp_path / "whole", lines.append)
    assert {line["run"] for line in lines[: len(lines) // 2]} == {f"{RUN}/layers", RUN}
    losses = [line["attention_loss"] + line["layers_loss"] for line in read_log(whole / RUN / "layers")]
    assert losses[-1] < losses[0]
    assert not [*whole.rglob("checkpoints")]

    def die(line):
        part = "layers" if "layers" in line["run"] else "predictions"
        if "seed-2" in line["run"] and part == killed_in and line["step"] > 10:  # after the checkpoint of an epoch
            raise Killed

    with pytest.raises(Killed):
        finetune(config, place / "model", tmp_path / "killed", die)
    steps = []
    killed = finetune(
        config, place / "model", tmp_path / "killed", lambda line: steps.append((line["run"], line["step"]))
    )
    assert min(step for run, step in steps if "layers" in run or killed_in == "predictions") > 10
    for run in (RUN, "pretrained/seed-2"):
        assert weights_of(whole / run) == weights_of(killed / run)


def test_key_goes_by_the_content_of_the_teacher(place, tmp_path, teacher):
    plain = make_task_config(place, **SHORT)
    settings = finetuning_settings(plain)["finetuning"] | finetuning_identity(plain, place / "model")["finetuning"]
    assert not {"teacher", "layer_epochs"} & {*settings}  # as in results from before there were teachers
    taught, deeper = make_config(place, teacher), make_config(place, teacher, layer_epochs=1)
    (tmp_path / "copy").mkdir()
    for path in teacher.iterdir():
        (tmp_path / "copy" / path.name).write_bytes(path.read_bytes())
    keys = [finetuning_key(config, place / "model") for config in (plain, taught, deeper)]
    assert len({*keys}) == 3
    assert finetuning_key(make_config(place, tmp_path / "copy"), place / "model") == keys[1]
    config = json.loads((tmp_path / "copy" / "config.json").read_text())
    (tmp_path / "copy" / "config.json").write_text(json.dumps(config | {"note": 1}))
    assert finetuning_key(make_config(place, tmp_path / "copy"), place / "model") != keys[1]
    assert "teacher" in finetuning_identity(taught, place / "model")


def test_what_cannot_be_is_refused_before_work(place, tmp_path, teacher):
    def save(name, vocabulary="vocab.txt", **sizes):
        backbone = kbf.Backbone("bert", vocabulary_size=50, **WIDE | sizes)
        model = kbf.TextClassifier(backbone, labels=["no", "yes"])
        save_model_directory(model, tmp_path / name, place / vocabulary)
        return tmp_path / name

    write_vocabulary(place / "other.txt", [*SPECIAL_PIECES, *(f"other{word}" for word in WORDS)])
    for folder, message, settings in (
        (save("heads", num_heads=4), "of as many heads .* Set finetuning.layer_epochs to 0", {"layer_epochs": 1}),
        (save("others", "other.txt"), "the tokenizer of its student. Received: .*others", {}),
        (place / "model", "on the task of its student. Received: .*model, without `classifier.weight`", {}),
        (tmp_path / "nope", "must be a folder|must hold config.json", {}),
    ):
        for check in (finetune, lambda *given: check_finetuning_stage(*given)):
            with pytest.raises((ValueError, FileNotFoundError), match=message):
                check(make_config(place, folder, **settings), place / "model", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    check_finetuning_stage(make_config(place, tmp_path / "heads"), place / "model", tmp_path / "out")


def test_task_teacher_is_compared_with_the_tokenizer_of_the_run(place, tmp_path, teacher):
    config = make_config(place, teacher, layer_epochs=0)
    check_finetuning(config)  # the vocabulary is still to be built
    check_finetuning(config, read_tokenizer_file(place / "vocab.txt"))
    write_vocabulary(tmp_path / "other.txt", [*SPECIAL_PIECES, *WORDS[:3]])
    with pytest.raises(ValueError, match="the tokenizer of its student. Received: .*other pieces"):
        check_finetuning(config, read_tokenizer_file(tmp_path / "other.txt"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["finetuning.layer_epochs=3"], "must go with a teacher. Received: layer_epochs=3"),
        (["finetuning={teacher: there, lora_rank: 4}"], "all weights are trained. Received: lora_rank=4"),
        (["finetuning={teacher: there, layer_epochs: 2, minutes: 3}"], "must go without `layer_epochs`"),
        (["finetuning.teacher=there", "task.kind=multi_label"], "of kind classification, regression. Received: kind="),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        load_config(None, settings)

"""Fine-tuning: every seed from both starts, resumable between runs, a seed the same wherever it comes."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file

from keras_bert_flow.config.loading import make_config
from keras_bert_flow.conversion.model_directory import save_model_directory
from keras_bert_flow.json_documents import read_json_object
from keras_bert_flow.prediction.predictor import Predictor
from keras_bert_flow.records.manifest import check_folder
from keras_bert_flow.text.vocabulary.vocab_file import SPECIAL_PIECES, write_vocabulary
from keras_bert_flow.training.finetuning.early_stopping import StopWithoutGain
from keras_bert_flow.training.finetuning.finetune import finetune
from keras_bert_flow.training.finetuning.random_weights import with_random_training
from keras_bert_flow.training.precision import seed_everything
from keras_bert_flow.training.pretraining.pretrain import make_pretrainer
from keras_bert_flow.training.state.logs import append_log, read_log
from tests.oracles.tiny_records import make_tiny_config

WORDS = tuple(f"word{number}" for number in range(45))
RUNS = ["pretrained/seed-1", "pretrained/seed-2", "random/seed-1", "random/seed-2"]


def write_table(path, count, seed):
    """Write texts of which every word tells the class: the words of the two do not overlap."""
    rng = np.random.default_rng(seed)
    lines = ["text\tlabel"]
    for row in range(count):
        label = row % 2
        words = rng.choice(WORDS[label:20:2], rng.integers(2, 7))
        lines.append(f"{' '.join(words)}\t{('no', 'yes')[label]}")
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with `model/`, as pre-training publishes it, and the two tables."""
    place = tmp_path_factory.mktemp("finetune")
    write_vocabulary(place / "vocab.txt", [*SPECIAL_PIECES, *WORDS])
    seed_everything(5)
    save_model_directory(make_pretrainer(make_tiny_config().model, 50), place / "model", place / "vocab.txt")
    write_table(place / "train.tsv", 77, seed=0)  # not a multiple of the batch
    write_table(place / "dev.tsv", 21, seed=1)
    return place


def make_task_config(place, dev="dev.tsv", **finetuning):
    settings = {
        "batch_size": 8,
        "epochs": 12,  # at 8 one run of four has just begun to learn
        "sequence_length": 16,
        "learning_rate": 0.01,  # at 0.03 some runs stay with one class
        "seeds": (1, 2),
        "random_max_epochs": 1,  # `epochs`, if that is more
        "random_patience_epochs": 12,
    }
    values = {
        "task": {"name": "synthetic", "train": str(place / "train.tsv"), "dev": str(place / dev)},
        "finetuning": settings | finetuning,
    }
    return make_config(type(make_tiny_config()), values, "task")


@pytest.fixture(scope="module")
def finished(place):
    return finetune(make_task_config(place), place / "model", place / "finished", lambda line: None)


def weights_of(folder):
    return (folder / "model" / "model.safetensors").read_bytes()


def test_finetune_learns_what_can_be_separated(finished):
    for run in RUNS:
        log = read_log(finished / run)
        assert log[-1]["dev_accuracy"] == 1.0
        assert log[-1]["dev_loss"] < 0.2 < log[0]["loss"]
        assert [line["step"] for line in log] == sorted({line["step"] for line in log})
        assert log[-1]["step"] == 12 * 10  # epochs of 77 rows in batches of 8


def test_finetune_publishes_every_run_whole(finished):
    manifest = check_folder(finished, "finetuning")
    names = {file.name for file in manifest.files}
    files = ("log.jsonl", "run.json", "model/config.json", "model/model.safetensors", "model/vocab.txt")
    assert {f"{run}/{file}" for run in RUNS for file in files} <= names
    assert not [name for name in names if "checkpoint" in name or name.endswith(".tmp")]


def test_finetune_starts_and_seeds_differ(finished):
    assert len({weights_of(finished / run) for run in RUNS}) == 4
    first_losses = [read_log(finished / run)[0]["loss"] for run in RUNS]
    assert len(set(first_losses)) == 4


def test_finetuned_models_score_as_their_logs_say(place, finished):
    predictor = Predictor(finished / RUNS[0] / "model")
    assert predictor.model.labels == predictor.task.labels == ("no", "yes")
    texts, labels = zip(*(line.split("\t") for line in (place / "dev.tsv").read_text().splitlines()[1:]), strict=True)
    for run in RUNS:
        if run != RUNS[0]:
            predictor.take_weights(finished / run / "model")  # what is compiled stays
        predictions = predictor.predict(texts)
        losses = [-np.log(found["probabilities"][label]) for found, label in zip(predictions, labels, strict=True)]
        log = [line for line in read_log(finished / run) if "dev_loss" in line]
        # Of random weights the best model is published, the first of equals.
        line = max(log, key=lambda line: line["dev_accuracy"]) if run.startswith("random") else log[-1]
        assert np.mean(losses) == pytest.approx(line["dev_loss"], rel=1e-4)  # float32


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("bert_adam", marks=pytest.mark.any_backend)])
def test_finetune_slows_layers_by_depth(place, tmp_path, optimizer):
    settings = {"layer_decay": 1e-5, "seeds": (1,), "epochs": 1, "compare_random": False, "optimizer": optimizer}
    output = finetune(make_task_config(place, **settings), place / "model", tmp_path / "out", lambda line: None)
    before = load_file(place / "model" / "model.safetensors")
    after = load_file(output / RUNS[0] / "model" / "model.safetensors")
    moves = {name: float(np.abs(after[name] - before[name]).max()) for name in after if name in before}
    moved = sorted(name for name in moves if moves[name] > 1e-3)
    assert moved == ["bert.pooler.dense.bias", "bert.pooler.dense.weight"]
    assert 0 < max(moves[name] for name in moves if ".encoder." in name) < 2e-5  # ten steps of 0.01, times 1e-5
    assert max(moves[name] for name in moves if ".embeddings." in name) < 1e-8  # times 1e-10, and the weight's rounding


@pytest.mark.any_backend
def test_finetune_starts_a_new_head_for_other_classes(place, finished, tmp_path):
    model = finished / "pretrained" / "seed-1" / "model"
    table = tmp_path / "three.tsv"
    table.write_text((place / "train.tsv").read_text() + "word1\tperhaps\n")
    settings = {"epochs": 1, "seeds": (1,), "compare_random": False}
    config = make_task_config(place, **settings)
    config = config.model_copy(update={"task": config.task.model_copy(update={"train": str(table)})})
    with pytest.raises(ValueError, match="--new-head"):
        finetune(config, model, tmp_path / "refused", lambda line: None)
    finetuning = config.finetuning.model_copy(update={"new_head": True})
    config = config.model_copy(update={"finetuning": finetuning})
    output = finetune(config, model, tmp_path / "out", lambda line: None)
    assert len(Predictor(output / "pretrained" / "seed-1" / "model").task.labels) == 3


def test_finetune_goes_on_between_runs_and_a_seed_is_the_same_anywhere(place, finished):
    class Killed(BaseException):
        pass

    def die_at_second(line):
        if line["run"] == RUNS[1]:
            raise Killed

    output, config = place / "killed", make_task_config(place, compare_random=False)
    with pytest.raises(Killed):
        finetune(config, place / "model", output, die_at_second)
    with pytest.raises(ValueError, match=r"another finetuning\.learning_rate \(0\.01, now 0\.04\)\. Undo"):
        finetune(make_task_config(place, compare_random=False, learning_rate=0.04), place / "model", output)
    lines = []
    finetune(config, place / "model", output, lines.append)
    assert {line["run"] for line in lines} == {RUNS[1]}
    # Seed 2 was compiled first of its call here, and came second on a used classifier there.
    for run in RUNS[:2]:
        assert weights_of(output / run) == weights_of(finished / run)


def test_finished_finetuning_returns_at_once(place, finished):
    def fail(line):
        raise AssertionError("trained again")

    assert finetune(make_task_config(place), place / "model", finished, fail) == finished


def test_unknown_dev_label_is_one_line_with_file_and_row(place):
    (place / "odd.tsv").write_text("text\tlabel\nword1\tno\nword2\tmaybe\n")
    with pytest.raises(ValueError, match=r"odd\.tsv, row 3: a label must be .* Received: 'maybe'") as caught:
        finetune(make_task_config(place, dev="odd.tsv"), place / "model", place / "odd")
    assert "\n" not in str(caught.value)
    assert not (place / "odd").exists()


def test_missing_table_and_model_are_named(place):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.tsv"):
        finetune(make_task_config(place, dev="nowhere.tsv"), place / "model", place / "out")
    config = make_task_config(place)
    task = config.task.model_copy(update={"extra_dev": {"far": str(place / "far.tsv")}})
    config = config.model_copy(update={"task": task})
    with pytest.raises(FileNotFoundError, match=r"far\.tsv"):
        finetune(config, place / "model", place / "out")
    (place / "far.tsv").write_text("text\tlabel\nword1\tno\nword2\tperhaps\n")
    with pytest.raises(ValueError, match=r"far\.tsv, row 3: a label must be .* Received: 'perhaps'"):
        finetune(config, place / "model", place / "out")
    with pytest.raises(FileNotFoundError, match="no_model"):
        finetune(make_task_config(place), place / "no_model", place / "out")


@pytest.mark.any_backend
def test_callbacks_follow_every_run(place):
    class Diary(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.entries, self.steps = [], 0

        def on_train_begin(self, logs=None):
            self.entries.append(("begin", type(self.model).__name__))

        def on_train_batch_end(self, batch, logs=None):
            self.steps += 1

        def on_epoch_end(self, epoch, logs=None):
            if logs["step"] == 5:
                self.model.stop_training = True

        def on_train_end(self, logs=None):
            self.entries.append(("end", logs["step"]))

    diary = Diary()
    config = make_task_config(place, epochs=1, compare_random=False)
    output = finetune(config, place / "model", place / "followed", lambda line: None, callbacks=[diary])
    assert diary.entries == [("begin", "TextClassifier"), ("end", 5)] * 2
    assert diary.steps == 10
    assert [read_log(output / run)[-1]["step"] for run in RUNS[:2]] == [5, 5]  # of 10


def test_finetuning_says_that_it_takes_one_device(place, caplog):
    config = make_task_config(place)
    distribution = type(config.distribution)(kind="data_parallel")
    with pytest.raises(FileNotFoundError):
        finetune(config.model_copy(update={"distribution": distribution}), place / "none", place / "one-device")
    assert "Fine-tuning takes one device: distribution.kind=data_parallel is for pre-training." in caplog.text
    caplog.clear()
    with pytest.raises(FileNotFoundError):
        finetune(config, place / "none", place / "one-device")
    assert not caplog.text


@pytest.mark.any_backend
def test_run_ends_where_nothing_is_gained_and_the_best_is_published(place):
    settings = {"seeds": (1,), "compare_random": False, "patience_epochs": 2, "publish": "best"}
    output = finetune(make_task_config(place, **settings), place / "model", place / "patient", lambda line: None)
    scores = [line["dev_accuracy"] for line in read_log(output / RUNS[0]) if "dev_accuracy" in line]
    best = scores.index(max(scores))
    assert len(scores) == best + 1 + 2 < 12
    last = finetune(
        make_task_config(place, **settings | {"publish": "last"}), place / "model", place / "last", lambda line: None
    )
    shorter = make_task_config(place, seeds=(1,), compare_random=False, publish="best", patience_epochs=1)
    again = finetune(shorter, place / "model", place / "again", lambda line: None)
    assert weights_of(output / RUNS[0]) == weights_of(again / RUNS[0]) != weights_of(last / RUNS[0])
    assert not (output / RUNS[0] / "best").exists()


@pytest.mark.any_backend
def test_random_weights_are_trained_until_nothing_is_gained(place):
    settings = {"seeds": (1,), "epochs": 1, "random_max_epochs": 30, "random_patience_epochs": 2}
    config, lines = make_task_config(place, learning_rate=0.05, **settings), []

    def die_in_the_second_epoch(line):
        lines.append(line)
        if line["run"] == RUNS[2] and line["step"] > 12:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finetune(config, place / "model", place / "until", die_in_the_second_epoch)
    output = finetune(config, place / "model", place / "until", lambda line: None)
    whole = finetune(config, place / "model", place / "until, at once", lambda line: None)
    assert weights_of(output / RUNS[2]) == weights_of(whole / RUNS[2])
    assert read_log(output / RUNS[0])[-1]["step"] == 10
    found = [line for line in read_log(output / RUNS[2]) if "dev_accuracy" in line]
    scores, losses = ([line[f"dev_{name}"] for line in found] for name in ("accuracy", "loss"))
    assert scores == [line["dev_accuracy"] for line in read_log(whole / RUNS[2]) if "dev_accuracy" in line]
    gain = max(scores.index(max(scores)), losses.index(min(losses)))
    assert len(scores) == gain + 1 + 2 < 30
    assert read_json_object(output / RUNS[2] / "run.json")["score"] == max(scores)


def test_random_weights_try_the_rates_and_batches_of_the_grid(place):
    grid = {"learning_rate": [0.1, 0.2], "epochs": [2, 3], "batch_size": [8, 16]}
    config = make_task_config(place, grid=grid, random_max_epochs=9, random_patience_epochs=4)
    settings = with_random_training(config).finetuning
    assert settings.grid.model_dump(mode="json") == grid | {"epochs": [9]}
    assert (settings.epochs, settings.patience_epochs, settings.publish) == (9, 4, "best")
    assert (settings.learning_rate, settings.seeds) == (config.finetuning.learning_rate, config.finetuning.seeds)


@pytest.mark.parametrize(
    ("scores", "losses", "loss", "ends"),
    [
        ([0.5, 0.6, 0.6, 0.6], [3, 2, 1, 0], None, True),
        ([0.5, 0.6, 0.6, 0.6], [3, 2, 1, 0], "dev_loss", False),  # the loss still falls
        ([0.5, 0.6, 0.6, 0.6], [3, 2, 2, 2], "dev_loss", True),
        ([0.5, 0.6, 0.6], [3, 2, 2], "dev_loss", False),
        ([0.5, 0.6, 0.6, 0.7], [3, 2, 2, 2], "dev_loss", False),
    ],
)
def test_loss_counts_as_a_gain_where_it_is_asked_for(scores, losses, loss, ends, tmp_path):
    for step, (score, value) in enumerate(zip(scores, losses, strict=True), 1):
        append_log(tmp_path, {"step": step, "dev_accuracy": score, "dev_loss": float(value)})
    callback = StopWithoutGain(tmp_path, "dev_accuracy", 2, loss)
    callback.set_model(SimpleNamespace(stop_training=False))
    callback.on_epoch_end(0, {"loss": 1.0})  # no evaluation
    assert not callback.model.stop_training
    callback.on_epoch_end(1, {"dev_accuracy": scores[-1]})
    assert callback.model.stop_training == ends


@pytest.mark.any_backend
@pytest.mark.parametrize(("warmup", "ends"), [(0, 3), (1, 3), (2, 4), (4, 6)])
def test_patience_begins_where_the_learning_rate_has_risen(warmup, ends, tmp_path):
    callback = StopWithoutGain(tmp_path, "dev_accuracy", 2, warmup=warmup)
    callback.set_model(SimpleNamespace(stop_training=False))
    for epoch in range(1, ends + 1):
        assert not callback.model.stop_training
        append_log(tmp_path, {"step": epoch, "dev_accuracy": 0.5})
        callback.on_epoch_end(epoch, {"dev_accuracy": 0.5})
    assert callback.model.stop_training

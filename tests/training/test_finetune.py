"""Fine-tuning: every seed from both starts, resumable between runs, a seed the same wherever it comes."""

import shutil

import keras
import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.dummy import DummyClassifier

import keras_bert_flow as kbf
from keras_bert_flow.data.model_tokenizer import read_tokenizer
from keras_bert_flow.files.documents import read_json_object
from keras_bert_flow.prediction.predictors import Predictor
from keras_bert_flow.results.manifest import check_folder
from keras_bert_flow.tasks.baselines.word_baseline import answer_from_words
from keras_bert_flow.training.finetuning.finetune import finetune, list_runs
from keras_bert_flow.training.finetuning.task_data import check_task_files, read_task_data, read_task_files
from keras_bert_flow.training.finetuning.task_runs import describe_run
from keras_bert_flow.training.loop.logs import read_log
from tests.training.separable_task import RUNS, make_task_config, weights_of, write_table

LARGER = {"batch_size": 16}  # half the steps of `finished` are enough to learn


@pytest.fixture(scope="module")
def told():
    """The lines that the fine-tuning of `finished` reports."""
    return []


@pytest.fixture(scope="module")
def finished(place, told):
    return finetune(make_task_config(place, **LARGER), place / "model", place / "finished", told.append)


@pytest.mark.any_backend
def test_finetune_reports_the_place_of_each_run(finished, told):
    places = {(line["run"], line["run_number"], line["run_count"], line["total_steps"]) for line in told}
    assert places == {(run, number, 4, 12 * 5) for number, run in enumerate(RUNS, 1)}
    assert "run_number" not in read_log(finished / RUNS[0])[0]


def test_runs_of_grids_and_label_counts_are_counted(place):
    grid = {"learning_rate": [0.01, 0.03], "epochs": [2], "batch_size": [8]}
    config = make_task_config(place, grid=grid, label_counts=[24, 3, "all"], seeds=[5])
    few = [f"label-counts/{count}/{start}/seed-5" for count in (3, 24) for start in ("pretrained", "random")]
    points = [(folder, name) for folder in ("grid", "grid-random") for name in ("rate-0.01", "rate-0.03")]
    runs = [*list_runs(config, has_initial=True)]
    assert [(run.split("/")[0], run.split("/")[1].partition("-batch")[0]) for run in runs[:4]] == points
    assert runs[4:] == ["initial/seed-5", *few]


@pytest.mark.any_backend
def test_finetune_learns_what_can_be_separated(finished):
    for run in RUNS:
        log = read_log(finished / run)
        assert log[-1]["dev_accuracy"] == 1.0
        assert log[-1]["dev_loss"] < 0.2 < log[0]["loss"]
        assert [line["step"] for line in log] == sorted({line["step"] for line in log})
        assert log[-1]["step"] == 12 * 5  # epochs of 77 rows in batches of 16


@pytest.mark.any_backend
def test_finetune_publishes_every_run_whole(finished):
    manifest = check_folder(finished, "finetuning")
    names = {file.name for file in manifest.files}
    files = ("log.jsonl", "run.json", "model/config.json", "model/model.safetensors", "model/vocab.txt")
    assert {f"{run}/{file}" for run in RUNS for file in files} <= names
    assert not [name for name in names if "checkpoint" in name or name.endswith(".tmp")]


@pytest.mark.any_backend
def test_finetune_starts_and_seeds_differ(finished):
    assert len({weights_of(finished / run) for run in RUNS}) == 4
    first_losses = [read_log(finished / run)[0]["loss"] for run in RUNS]
    assert len(set(first_losses)) == 4


@pytest.mark.any_backend
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


@pytest.mark.any_backend
def test_card_says_what_the_model_scores_and_what_its_baselines_do(place, finished):
    rows = [(place / name).read_text().splitlines()[1:] for name in ("train.tsv", "dev.tsv")]
    train, dev = ([row.split("\t")[1] for row in table] for table in rows)
    guess = DummyClassifier(strategy="most_frequent").fit([[0]] * len(train), train).score([[0]] * len(dev), dev)
    for run in RUNS:
        card = (finished / run / "model" / "README.md").read_text()
        assert "| accuracy | 1.0000 |" in card
        assert f"| of the commonest answer to the training table | {guess:.4f} |" in card
        assert "| of TF-IDF with logistic regression, fitted on the same labels | 1.0000 |" in card


@pytest.mark.any_backend
def test_texts_that_are_cut_are_logged_counted_and_in_the_card(place, finished, caplog):
    config = make_task_config(place)
    shorter = config.finetuning.model_copy(update={"sequence_length": 6})  # less than a user may choose
    config = config.model_copy(update={"finetuning": shorter})
    data = read_task_data(config, read_tokenizer(place / "model"))
    lengths = [len(row.split("\t")[0].split()) + 2 for row in (place / "train.tsv").read_text().splitlines()[1:]]
    over = [length - 6 for length in lengths if length > 6]
    expected = {"texts": len(lengths), "texts_cut": len(over), "tokens": sum(lengths), "tokens_cut": sum(over)}
    assert {name: data.texts["train"][name] for name in expected} == expected and over
    said = f"{len(over)} of {len(lengths)} texts are longer than 6 tokens"
    assert (
        any(line.startswith(f"train: {said}") for line in caplog.messages) and "8 would cut at most 1 %" in caplog.text
    )
    run = {"start": "pretrained", "seed": 1, "seconds": 1.0, "score": 1.0, "trained_parameters": 1, "parameters": 1}
    assert said in str(describe_run(config, data, run))
    counters = check_folder(finished).counters
    assert counters["train"] == data.texts["train"] | {
        "sequence_length": 16,
        "texts_cut": 0,
        "tokens_cut": 0,
    }


@pytest.mark.any_backend
@pytest.mark.slow
def test_word_baseline_of_the_card_is_that_of_the_report(place, tmp_path):
    rng = np.random.default_rng(4)
    for name, rows in (("train", 60), ("dev", 41)):  # most labels by the first word, the others at random
        words = rng.integers(0, 9, rows)
        labels = np.where(rng.random(rows) < 0.7, words % 2, rng.integers(0, 2, rows))
        lines = [f"word{words[row]} word{rng.integers(9, 20)}\t{('no', 'yes')[labels[row]]}" for row in range(rows)]
        (tmp_path / f"{name}.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    tables = {name: str(tmp_path / f"{name}.tsv") for name in ("train", "dev")}
    config = make_task_config(place, epochs=1, seeds=(1,), compare_random=False, max_train_examples=50)
    config = config.model_copy(update={"task": config.task.model_copy(update=tables), "seed": 3})
    output = finetune(config, place / "model", tmp_path / "out", lambda line: None)
    files = read_task_files(config)
    words = answer_from_words(files.task, files.training, {"dev": files.dev}, seed=3).predictions["dev"]
    wanted = files.task.score(files.dev, words)["accuracy"]
    assert 0.5 < wanted < 1
    row = f"| of TF-IDF with logistic regression, fitted on the same labels | {wanted:.4f} |"
    assert row in (output / RUNS[0] / "model" / "README.md").read_text()


@pytest.mark.any_backend
def test_random_examples_have_the_shares_and_the_labels_of_a_sorted_table(place, tmp_path):
    lines = [f"word{row}\t{'aabbc'[row // 100]}" for row in range(400)] + ["word400\tc"]  # `c` once, at the end
    (tmp_path / "train.tsv").write_text("\n".join(["text\tlabel", *lines]) + "\n")
    tables = {"train": str(tmp_path / "train.tsv"), "dev": str(tmp_path / "train.tsv")}
    config = make_task_config(place, max_train_examples=100)

    def read(seed, **settings):
        update = {"task": config.task.model_copy(update=tables), "seed": seed}
        update |= {"finetuning": config.finetuning.model_copy(update=settings)}
        return read_task_files(config.model_copy(update=update))

    with pytest.raises(ValueError, match="label"):
        read(0)  # the first have the label `a` alone
    files = read(0, train_examples="random")
    rows = [int(example.text.removeprefix("word")) for example in files.training]
    assert rows == sorted(set(rows)) and len(rows) == 100 and files.task.labels == ("a", "b", "c")
    assert abs(sum(row < 200 for row in rows) - 50) < 20  # 4 standard deviations
    assert read(0, train_examples="random").training == files.training != read(1, train_examples="random").training
    everything = read(0, train_examples="random", max_train_examples=None).training
    assert everything == read(0, max_train_examples=1000).training and len(everything) == 401


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("bert_adam", marks=pytest.mark.any_backend)])
@pytest.mark.any_backend
@pytest.mark.first_form
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
@pytest.mark.slow
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


@pytest.mark.any_backend
@pytest.mark.slow
def test_finetune_goes_on_between_runs_and_a_seed_is_the_same_anywhere(place, finished):
    class Killed(BaseException):
        pass

    def die_at_second(line):
        if line["run"] == RUNS[1]:
            raise Killed

    output, config = place / "killed", make_task_config(place, compare_random=False, **LARGER)
    with pytest.raises(Killed):
        finetune(config, place / "model", output, die_at_second)
    with pytest.raises(ValueError, match=r"another finetuning\.learning_rate \(0\.01, now 0\.04\)\. Undo"):
        finetune(make_task_config(place, compare_random=False, learning_rate=0.04, **LARGER), place / "model", output)
    lines = []
    finetune(config, place / "model", output, lines.append)
    assert {line["run"] for line in lines} == {RUNS[1]}
    # Seed 2 was compiled first of its call here, and came second on a used classifier there.
    for run in RUNS[:2]:
        assert weights_of(output / run) == weights_of(finished / run)


@pytest.mark.any_backend
def test_finished_finetuning_returns_at_once(place, finished):
    def fail(line):
        raise AssertionError("trained again")

    assert finetune(make_task_config(place, **LARGER), place / "model", finished, fail) == finished


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
@pytest.mark.slow
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
def test_tables_are_remarked_on_before_training(tmp_path, caplog):
    rows = [f"text {number}\t{'no' if number % 2 else 'yes'}" for number in range(20)]
    (tmp_path / "train.tsv").write_text("text\tlabel\n" + "\n".join([*rows, "one more\tyes\u200b"]) + "\n")
    (tmp_path / "dev.tsv").write_text("text\tlabel\n" + "\n".join([*rows[:3], "TEXT  3\tyes", "other\tno"]) + "\n")
    files = check_task_files(make_task_config(tmp_path))
    alike, repeated = files.remarks
    assert "'yes' (10 rows) and 'yes\\u200b' (1 rows) look the same" in alike
    assert repeated.startswith(
        "dev: 4 of 5 rows have the texts of a training row, 3 with the label that they have there "
    )
    assert caplog.messages == list(files.remarks)
    (same,) = check_task_files(make_task_config(tmp_path, "train.tsv")).remarks[1:]
    assert same == "dev is the training file itself: its scores are those of rows that were trained on."


@pytest.mark.slow
@pytest.mark.any_backend
def test_calibration_divides_the_published_head_and_nothing_else(place, tmp_path):
    write_table(tmp_path / "dev.tsv", 40, seed=1)
    shutil.copy(place / "train.tsv", tmp_path)
    settings = {"epochs": 1, "seeds": (1,), "compare_random": False}
    folders = {}
    for calibrates in (False, True, "bias_corrected"):
        config = make_task_config(tmp_path, calibrate=calibrates, **settings)
        folders[calibrates] = finetune(config, place / "model", tmp_path / str(calibrates), lambda line: None) / RUNS[0]
    before, after = (load_file(folders[each] / "model" / "model.safetensors") for each in (False, True))
    found = read_json_object(folders[True] / "run.json")["calibration"]
    assert found["rows"] == 40 and found["temperature"] != 1 and found["loss_after"] < found["loss_before"]
    for name, tensor in before.items():
        divisor = found["temperature"] if name.startswith("classifier.") else 1
        np.testing.assert_allclose(after[name], tensor / divisor, rtol=1e-6)
    texts = [line.split("\t")[0] for line in (tmp_path / "dev.tsv").read_text().splitlines()[1:]]
    answers = [kbf.load(folders[each] / "model").predict(texts) for each in (False, True)]
    assert [one["label"] for one in answers[0]] == [one["label"] for one in answers[1]]
    labels = [line.split("\t")[1] for line in (tmp_path / "dev.tsv").read_text().splitlines()[1:]]
    loss = -np.mean([np.log(one["probabilities"][label]) for one, label in zip(answers[1], labels, strict=True)])
    assert loss == pytest.approx(found["loss_after"], abs=1e-5)
    assert "expected calibration error" in (folders[True] / "model" / "README.md").read_text()
    run = read_json_object(folders["bias_corrected"] / "run.json")
    corrected = load_file(folders["bias_corrected"] / "model" / "model.safetensors")
    assert run["calibration"]["biases"] and run["calibration"]["loss_after"] < found["loss_after"]
    expected = before["classifier.bias"] / run["calibration"]["temperature"] + run["calibration"]["biases"]
    np.testing.assert_allclose(corrected["classifier.bias"], expected, rtol=1e-5)
    answers = kbf.load(folders["bias_corrected"] / "model").predict(texts)
    right = np.mean([one["label"] == label for one, label in zip(answers, labels, strict=True)])
    assert right == pytest.approx(run["score"])


@pytest.mark.slow
@pytest.mark.any_backend
@pytest.mark.parametrize(
    ("settings", "rate"),
    [
        ({}, 0.1),
        ({"dropout_rate": 0.2}, 0.2),
        ({"head_start": "probe"}, 0.0),
        ({"head_start": "probe", "head_dropout_rate": 0.3}, 0.3),
        ({"head_dropout_rate": 0.0}, 0.0),
    ],
)
@pytest.mark.first_form
def test_dropout_before_the_head_is_its_own(place, tmp_path, settings, rate):
    config = make_task_config(place, epochs=1, seeds=(1,), compare_random=False, **settings)
    folder = finetune(config, place / "model", tmp_path / "out", lambda line: None) / RUNS[0] / "model"
    written = read_json_object(folder / "config.json")
    assert written["classifier_dropout"] == rate
    assert written["hidden_dropout_prob"] == settings.get("dropout_rate", 0.1)

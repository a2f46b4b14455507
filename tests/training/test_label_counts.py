"""Fine-tuning on fewer labels: which rows, for how long, resumed after a kill, and what the report makes of it."""

import json

import pytest

from keras_bert_flow.config.finetuning import FinetuningConfig
from keras_bert_flow.config.loading import make_config
from keras_bert_flow.config.pipeline import PipelineConfig
from keras_bert_flow.evaluation.tables import build_label_curve, curve_rows, describe_gains
from keras_bert_flow.tasks.core.texts import TextExample
from keras_bert_flow.tasks.registry import make_task
from keras_bert_flow.training.finetuning import grid
from keras_bert_flow.training.finetuning.finetune import finetune
from keras_bert_flow.training.finetuning.grid import with_labels
from keras_bert_flow.training.finetuning.task_data import check_label_counts
from keras_bert_flow.training.loop.logs import read_log
from tests.training.separable_task import make_task_config

pytestmark = pytest.mark.any_backend

SETTINGS = {"epochs": 2, "random_max_epochs": 2, "label_counts": [3, "all", 24], "batch_size": 8}


def read_curve(folder):
    return json.loads((folder / "label-counts.json").read_text())


@pytest.fixture(scope="module")
def encoded():
    """The texts that were encoded for each number of labels."""
    return {}


@pytest.fixture(scope="module")
def finished(place, encoded):
    class Killed(BaseException):
        pass

    def die(line):
        if (line["run"], line["step"]) == ("24 labels, random/seed-1", 6):  # three steps an epoch
            raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid, "with_labels", lambda *given: shorten(with_labels(*given)))
        task_type, encode = type(make_task("classification")), type(make_task("classification")).encode

        def note(task, tokenizer, examples, length):
            encoded.setdefault(len(examples), [example.text for example in examples])
            return encode(task, tokenizer, examples, length)

        patch.setattr(task_type, "encode", note)
        config, output = make_task_config(place, **SETTINGS), place / "counts"
        with pytest.raises(Killed):
            finetune(config, place / "model", output, die)
        told = []
        numbers = []

        def note_line(line):
            told.append((line["run"], line["step"]))
            numbers.append((line["run_number"], line["run_count"]))

        finetune(config, place / "model", output, note_line)
    assert [*dict.fromkeys(numbers)] == [(11, 12), (12, 12)]
    # What was whole is not trained again: it goes on from the checkpoint of the first epoch on 24 rows.
    few = "24 labels, random"
    assert told == [(f"{few}/seed-1", step) for step in range(4, 10)] + [
        (f"{few}/seed-2", step) for step in range(1, 10)
    ]
    return output


def shorten(config):
    """Make the runs of few labels short: how many epochs they have is tested apart."""
    settings = config.finetuning.model_copy(update={"epochs": 3})
    return config.model_copy(update={"finetuning": settings})


@pytest.mark.slow
def test_curve_holds_every_run_of_every_number(finished):
    curve = read_curve(finished)
    assert (curve["kind"], curve["main_metric"]) == ("classification", "accuracy")
    assert [row["labels"] for row in curve["rows"]] == [3, 24, 77]
    for row in curve["rows"]:
        for start in ("pretrained", "random"):
            assert [run["seed"] for run in row["runs"][start]] == [1, 2]
            for run in row["runs"][start]:
                few = "" if row["labels"] == 77 else f"label-counts/{row['labels']}/"
                log = read_log(finished / f"{few}{start}/seed-{run['seed']}")
                assert run["dev_scores"] == [line["dev_accuracy"] for line in log if "dev_accuracy" in line]
                best = max(run["dev_scores"]) if start == "random" else run["dev_scores"][-1]
                assert run["score"] == best
                assert log[-1]["step"] == len(run["dev_scores"]) * -(-row["labels"] // 8)


@pytest.mark.slow
def test_few_labels_are_the_first_rows(finished, place, encoded):
    texts = [line.split("\t")[0] for line in (place / "train.tsv").read_text().splitlines()[1:]]
    assert encoded[3] == texts[:3] and encoded[24] == texts[:24]


@pytest.mark.slow
def test_models_of_few_labels_are_not_kept(finished):
    assert len(list(finished.glob("*/seed-*/model"))) == 4
    assert not list(finished.glob("label-counts/**/model"))


@pytest.mark.slow
def test_table_sets_the_models_beside_the_words(finished, place):
    task = make_task("classification")
    training, dev = task.read(place / "train.tsv"), task.read(place / "dev.tsv")
    curve = build_label_curve(finished, task.learn(training), training, dev, seed=1)
    header, *rows = curve_rows(curve)
    assert header == ["labels, accuracy %", "TF-IDF with logistic regression", "random weights", "pre-trained"]
    assert [row[0] for row in rows] == ["3", "24", "77"]
    words = [row["tfidf"]["mean"] for row in curve["rows"]]
    assert words == sorted(words) and words[-1] == 1.0 > words[0]  # each word tells its class, once it has been seen
    assert all(model in row for row in curve["rows"] for model in ("tfidf", "random", "pretrained"))
    assert "ahead" in describe_gains(curve)


def test_table_without_a_curve_is_none(tmp_path):
    assert build_label_curve(tmp_path, None, [], [], 1) is None


def test_damaged_curve_is_refused(tmp_path):
    (tmp_path / "label-counts.json").write_text('{"rows": [{}], "kind": "classification", "main_metric": "f1"}')
    with pytest.raises(ValueError, match="A label curve must have all of its fields. Received: .*damaged"):
        build_label_curve(tmp_path, None, [], [], 1)


@pytest.mark.parametrize(("count", "epochs"), [(1000, 3), (500, 6), (100, 20), (3, 20)])
@pytest.mark.parametrize(("head_start", "most"), [("random", 20), ("probe", 5)])
def test_few_labels_have_as_many_steps_up_to_the_most_epochs(head_start, most, count, epochs, place):
    epochs = min(epochs, most)
    config = make_task_config(place, epochs=3, head_start=head_start)
    settings = with_labels(config, count, 1000).finetuning
    assert (settings.epochs, settings.max_train_examples, settings.grid) == (epochs, count, None)
    assert with_labels(make_task_config(place, epochs=30), count, 1000).finetuning.epochs == 30


def test_gain_is_told_with_its_number_of_labels():
    def row(labels, **means):
        return {"labels": labels, **{model: {"mean": mean} for model, mean in means.items()}}

    rows = [row(100, tfidf=0.5, random=0.4, pretrained=0.62), row(900, tfidf=0.7, random=0.75, pretrained=0.8)]
    curve = {"kind": "classification", "main_metric": "accuracy", "rows": rows}
    assert describe_gains(curve) == (
        "The pre-trained model is furthest ahead of the better other row at 100 labels, by 12.0 points."
    )
    assert describe_gains(curve | {"rows": [row(9, tfidf=0.5, pretrained=0.4)]}).startswith("At no number of labels")


@pytest.mark.parametrize(
    ("labels", "count", "message"),
    [
        (["a"] * 60 + ["b"] * 60, 50, "Received: only 'a' in the first 50 rows. Shuffle its rows, or take more."),
        (["a"] * 30 + ["b"] * 30 + ["c"] * 60, 60, "Received: no 'c' in the first 60 rows, of 60 in the table."),
        (["a", "b"] * 60, 50, None),
        (["a", "b"] * 60 + ["c"], 50, None),  # one row in 121 may well be missing
        ([str(number % 60) for number in range(120)], 50, None),  # more classes than rows
        ([number / 10 for number in range(120)], 50, "numbers that are all below the median of the table"),
        ([number * 7 % 12 / 10 for number in range(120)], 50, None),
    ],
)
def test_counts_of_a_sorted_table_are_refused(labels, count, message):
    config = make_config(PipelineConfig, {"finetuning": {"label_counts": [count, "all"]}}, "t")
    examples = [TextExample("a", None, label) for label in labels]
    if message is None:
        check_label_counts(config, examples)
        return
    with pytest.raises(ValueError) as caught:
        check_label_counts(config, examples)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_counts_that_the_table_has_not_are_refused_before_any_training(place, tmp_path):
    config = make_task_config(place, label_counts=[8, 77])
    with pytest.raises(ValueError, match="must be below the 77 training rows; `all` stands for these. Received: 77. L"):
        finetune(config, place / "model", tmp_path / "out", lambda line: pytest.fail("it trained"))
    with pytest.raises(ValueError, match="must name each number once"):
        FinetuningConfig(label_counts=[8, 8])
    with pytest.raises(ValueError, match="label_counts"):
        FinetuningConfig(label_counts=["most"])

"""New heads: other classes by `kbf finetune --new-head`, as from MNLI to RTE, and one on the mean of the tokens."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

import keras_bert_flow as kbf
from keras_bert_flow.cli import app
from keras_bert_flow.conversion.model_directory import load_task_model, save_model_directory
from tests.training.finetune_cases import write_tiny_model

pytestmark = pytest.mark.any_backend
RELATIONS = ("contradiction", "entailment", "neutral")


@pytest.mark.slow
def test_command_replaces_the_head_for_other_classes(tmp_path):
    model = load_task_model("classification", write_tiny_model(tmp_path), labels=RELATIONS)
    save_model_directory(model, tmp_path / "mnli", tmp_path / "vocab.txt")
    rows = [f"a b\tc {letter}\t{'not_' * (letter > 'd')}entailment" for letter in "abcdefgh"]
    (tmp_path / "rte.tsv").write_text("\n".join(["sentence1\tsentence2\tlabel", *rows]) + "\n")
    table = json.dumps(str(tmp_path / "rte.tsv"))
    (tmp_path / "rte.yaml").write_text(
        f"task: {{name: RTE, text: sentence1, text_pair: sentence2, train: {table}, dev: {table}}}\n"
        "finetuning: {batch_size: 4, epochs: 1, seeds: [1], compare_random: false, sequence_length: 16}\n"
    )
    command = ["finetune", "--model", tmp_path / "mnli", "--task", tmp_path / "rte.yaml", "--output", tmp_path / "out"]
    with pytest.raises(ValueError, match="--new-head") as caught:
        app([*map(str, command)], standalone_mode=False)
    assert "\n" not in str(caught.value)
    app([*map(str, command), "--new-head"], standalone_mode=False)
    config = json.loads((tmp_path / "out/pretrained/seed-1/model/config.json").read_text())
    assert list(config["id2label"].values()) == ["entailment", "not_entailment"]


@pytest.mark.slow
def test_labels_in_the_order_of_the_model_keep_its_head(tmp_path):
    model = load_task_model("classification", write_tiny_model(tmp_path), labels=("yes", "no"))
    save_model_directory(model, tmp_path / "theirs", tmp_path / "vocab.txt")
    rows = [f"a {letter}\t{'no' if letter > 'd' else 'yes'}" for letter in "abcdefgh"]
    (tmp_path / "table.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    table = json.dumps(str(tmp_path / "table.tsv"))
    (tmp_path / "task.yaml").write_text(
        f"task: {{name: Letters, train: {table}, dev: {table}}}\n"
        "finetuning: {batch_size: 4, epochs: 1, seeds: [1], compare_random: false, sequence_length: 16, "
        "learning_rate: 1e-9}\n"
    )
    command = ["finetune", "--model", tmp_path / "theirs", "--config", tmp_path / "task.yaml", "--output"]
    command.append(tmp_path / "out")
    with pytest.raises(ValueError, match="Set task.labels to those of id2label, in their order, to keep this head"):
        app([*map(str, command)], standalone_mode=False)
    app([*map(str, command), "--set", "task.labels=[yes, no]"], standalone_mode=False)
    trained = tmp_path / "out/pretrained/seed-1/model"
    assert list(json.loads((trained / "config.json").read_text())["id2label"].values()) == ["yes", "no"]
    heads = [load_file(folder / "model.safetensors")["classifier.weight"] for folder in (tmp_path / "theirs", trained)]
    np.testing.assert_allclose(*heads, atol=1e-6)  # of so low a rate


@pytest.mark.parametrize(
    ("labels", "advice"),
    [
        (("entailment", "neutral"), "Set task.labels to those of id2label"),
        (("Neutral", "entailment", "Contradiction"), "Spell the labels of the tables as in id2label"),
        (("entailment", "other"), "--new-head"),
    ],
)
def test_what_keeps_the_head_is_advised_first(tmp_path, labels, advice):
    model = load_task_model("classification", write_tiny_model(tmp_path), labels=RELATIONS)
    save_model_directory(model, tmp_path / "mnli", tmp_path / "vocab.txt")
    with pytest.raises(ValueError, match="must be those of the model") as caught:
        load_task_model("classification", tmp_path / "mnli", labels=labels)
    assert advice in str(caught.value) and ("keep this head" in str(caught.value)) == (advice != "--new-head")
    with pytest.raises(ValueError, match=r"pooling='mean'.*Set finetuning\.pooling=cls to keep this head"):
        load_task_model("classification", tmp_path / "mnli", labels=RELATIONS, pooling="mean")


def test_unnamed_outputs_are_all_to_be_named(tmp_path):
    model = load_task_model("classification", write_tiny_model(tmp_path), num_classes=3)
    save_model_directory(model, tmp_path / "three", tmp_path / "vocab.txt")
    with pytest.raises(ValueError, match=r"has 3 classes\. .*Name all of its classes in task\.labels, in their order"):
        load_task_model("classification", tmp_path / "three", labels=("no", "yes"))
    assert load_task_model("classification", tmp_path / "three", labels=("no", "perhaps", "yes")).num_classes == 3


@pytest.mark.slow
def test_command_trains_a_head_on_the_mean_of_tokens(tmp_path):
    write_tiny_model(tmp_path)
    rows = [f"a {letter}\t{'no' if letter > 'd' else 'yes'}" for letter in "abcdefgh"]
    (tmp_path / "table.tsv").write_text("\n".join(["text\tlabel", *rows]) + "\n")
    table = json.dumps(str(tmp_path / "table.tsv"))
    (tmp_path / "task.yaml").write_text(
        f"task: {{name: Letters, train: {table}, dev: {table}}}\n"
        "finetuning: {batch_size: 4, epochs: 1, seeds: [1], sequence_length: 16, pooling: mean, random_max_epochs: 1}\n"
    )
    inputs = ["--model", tmp_path / "model", "--task", tmp_path / "task.yaml"]
    app(["finetune", *map(str, inputs), "--output", str(tmp_path / "out")], standalone_mode=False)
    for start in ("pretrained", "random"):
        folder = tmp_path / "out" / start / "seed-1"
        config = json.loads((folder / "model/config.json").read_text())
        assert config["classifier_pooling"] == "mean"
        predictions = kbf.load(folder / "model").predict([row.split("\t")[0] for row in rows])
        scores = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
        right = [answer["label"] == row.split("\t")[1] for answer, row in zip(predictions, rows, strict=True)]
        assert sum(right) / len(right) == pytest.approx(scores[-1]["dev_accuracy"])  # asked as it was measured

"""New heads: other classes by `kbf finetune --new-head`, as from MNLI to RTE, and one on the mean of the tokens."""

import json

import pytest

import keras_bert_flow as kbf
from keras_bert_flow.cli import app
from keras_bert_flow.conversion.model_directory import load_task_model, save_model_directory
from tests.training.finetune_cases import write_tiny_model

pytestmark = pytest.mark.any_backend
RELATIONS = ("contradiction", "entailment", "neutral")


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

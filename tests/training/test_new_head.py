"""`kbf finetune --new-head`: from a model of three relations of two texts to one of two, as MNLI to RTE."""

import json

import pytest

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

"""A run learns from teachers of the Hub, which transformers wrote: one of layers, one of the task."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

from keras_bert_flow.text.vocabulary import SPECIAL_PIECES
from tests.commands import kbf
from tests.hub_server import serving_hub

pytest.importorskip("huggingface_hub", reason="it fetches")
transformers = pytest.importorskip("transformers")

WORDS = [f"word{i}" for i in range(40)]
SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def write_teachers(folder: Path) -> dict[str, Path]:
    pieces = [*SPECIAL_PIECES, ".", *WORDS]
    labels = {"id2label": {0: "no", 1: "yes"}, "label2id": {"no": 0, "yes": 1}}
    config = transformers.BertConfig(vocab_size=len(pieces), max_position_embeddings=32, **SIZES, **labels)
    models = {"bert": transformers.BertForMaskedLM, "tuned": transformers.BertForSequenceClassification}
    for name, model in models.items():
        model(config).save_pretrained(folder / name)
        (folder / name / "vocab.txt").write_text("\n".join(pieces) + "\n")
        (folder / name / "tokenizer_config.json").write_text('{"do_lower_case": true}')
    return {f"tiny/{name}": folder / name for name in models}


def write_run(folder: Path) -> Path:
    rng = np.random.default_rng(0)

    def say(words):
        return " ".join(rng.choice(words, 6))

    (folder / "text.txt").write_text("\n\n".join(f"{say(WORDS)}. {say(WORDS)}." for _ in range(40)))
    for table in ("train", "dev"):
        rows = [f"{say(WORDS[:20])}\tno\n{say(WORDS[20:])}\tyes\n" for _ in range(16)]
        (folder / f"{table}.tsv").write_text("text\tlabel\n" + "".join(rows))
    student = {"family": "bert", "num_layers": 1, "hidden_dim": 12, "num_heads": 2, "intermediate_dim": 16}
    layers = {"soft_target_weight": 0, "masked_lm_weight": 0, "hidden_state_weight": 0}
    layers |= {"attention_score_weight": 1.0, "layer_state_weight": 1.0}
    config = {
        "runs": str(folder / "runs"),
        "corpus": {"input": [str(folder / "text.txt")]},
        "records": {"sequence_length": 32, "max_predictions": 5, "shards": 1, "duplication": 1},
        "distillation": {"teacher": "hf://tiny/bert", "student": student, "start": "random", **layers}
        | {"batch_size": 8, "total_steps": 4, "warmup_steps": 1},
        "augmentation": {"copies": 1},
        "task": {table: str(folder / f"{table}.tsv") for table in ("train", "dev")} | {"labels": ["no", "yes"]},
        "finetuning": {"teacher": "hf://tiny/tuned", "layer_epochs": 1, "epochs": 1, "batch_size": 8, "seeds": [1]}
        | {"sequence_length": 16, "compare_random": False},
    }
    (folder / "taught.yaml").write_text(yaml.safe_dump(config))
    return folder / "taught.yaml"


@pytest.mark.slow
def test_run_learns_from_teachers_of_the_hub(tmp_path):
    config = write_run(tmp_path)
    with serving_hub(write_teachers(tmp_path / "hub")) as hub:
        environment = {"HF_ENDPOINT": hub.address, "HF_HOME": str(tmp_path / "home"), "HF_HUB_DISABLE_XET": "1"}
        environment |= {"HF_HUB_OFFLINE": "0", "PREFECT_HOME": str(tmp_path / "prefect")}
        status, output, error = kbf("run", config, environment=environment)
    assert status == 0, error
    assert "Report:" in output
    for stage in ("distillation", "augmentation", "finetuning"):
        (folder,) = (tmp_path / "runs" / stage).iterdir()
        assert (folder / "manifest.json").is_file()
    student = json.loads(next(tmp_path.glob("runs/distillation/*/model/config.json")).read_text())
    assert (student["hidden_size"], student["vocab_size"]) == (12, len(SPECIAL_PIECES) + 1 + len(WORDS))

"""Write a small model directory without Keras: for what is checked before Keras is imported."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from keras_bert_flow.conversion.directory import ModelDirectory
from keras_bert_flow.tasks.registry import make_task
from keras_bert_flow.text.vocabulary import SPECIAL_PIECES, write_vocabulary

PIECES = (*SPECIAL_PIECES, "a", "b", "c")
HIDDEN, INTERMEDIATE, POSITIONS = 4, 8, 64
TINY_SHAPE = {"hidden_dim": HIDDEN, "num_heads": 2, "intermediate_dim": INTERMEDIATE, "max_positions": POSITIONS}
_TRANSFORM = {
    "dense.weight": (HIDDEN, HIDDEN),
    "dense.bias": (HIDDEN,),
    "LayerNorm.weight": (HIDDEN,),
    "LayerNorm.bias": (HIDDEN,),
}


def write_tiny_model(
    folder: Path, labels: tuple[str, ...] = ("no", "yes"), pieces=PIECES, has_masked_lm: bool = False, seed=None
) -> Path:
    """Write a classifier of one block, with the names of `transformers` and weights of 0.

    Args:
        has_masked_lm: put a masked-LM head beside that of the classifier.
        seed: of random weights in place of zeros, the same for each backend.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "bert",
        "architectures": ["BertForSequenceClassification"],
        "vocab_size": len(pieces),
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "max_position_embeddings": POSITIONS,
    }
    (folder / "config.json").write_text(json.dumps(config))
    dense = {"query": "attention.self", "key": "attention.self", "value": "attention.self", "dense": "attention.output"}
    shapes = {
        "embeddings.word_embeddings.weight": (len(pieces), HIDDEN),
        "embeddings.position_embeddings.weight": (POSITIONS, HIDDEN),
        "embeddings.token_type_embeddings.weight": (2, HIDDEN),
        "embeddings.LayerNorm.weight": (HIDDEN,),
        "embeddings.LayerNorm.bias": (HIDDEN,),
        "pooler.dense.weight": (HIDDEN, HIDDEN),
        "pooler.dense.bias": (HIDDEN,),
    }
    layer = "encoder.layer.0"
    for name, place in dense.items():
        shapes |= {f"{layer}.{place}.{name}.weight": (HIDDEN, HIDDEN), f"{layer}.{place}.{name}.bias": (HIDDEN,)}
    for place in ("attention.output", "output"):
        shapes |= {f"{layer}.{place}.LayerNorm.{part}": (HIDDEN,) for part in ("weight", "bias")}
    shapes |= {f"{layer}.intermediate.dense.weight": (INTERMEDIATE, HIDDEN)}
    shapes |= {f"{layer}.intermediate.dense.bias": (INTERMEDIATE,)}
    shapes |= {f"{layer}.output.dense.weight": (HIDDEN, INTERMEDIATE), f"{layer}.output.dense.bias": (HIDDEN,)}
    tensors = {f"bert.{name}": np.zeros(shape, np.float32) for name, shape in shapes.items()}
    tensors |= {"classifier.weight": np.zeros((len(labels), HIDDEN), np.float32)}
    tensors |= {"classifier.bias": np.zeros(len(labels), np.float32)}
    if has_masked_lm:
        head = {f"transform.{name}": shape for name, shape in _TRANSFORM.items()} | {"bias": (len(pieces),)}
        tensors |= {f"cls.predictions.{name}": np.zeros(shape, np.float32) for name, shape in head.items()}
    if seed is not None:
        rng = np.random.default_rng(seed)
        for name in sorted(tensors):
            mean = float(name.endswith("LayerNorm.weight"))
            tensors[name] = rng.normal(mean, 0.3, tensors[name].shape).astype(np.float32)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.safetensors").chmod(0o644)  # the library makes it its writer's alone
    write_vocabulary(folder / "vocab.txt", pieces)
    make_task("classification", labels=labels).save(folder, POSITIONS)
    return folder


def check_directory(folder: str | Path) -> dict[str, Any]:
    """Check that the files of a model directory fit together, and return the arguments of its encoder."""
    directory = ModelDirectory(folder)
    _ = directory.opened
    return directory.settings

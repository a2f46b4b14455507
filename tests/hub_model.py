"""A model directory made without Keras: a checkpoint of few numbers, with files of other formats beside it."""

import json
from pathlib import Path

import numpy as np

from keras_bert_flow.conversion.codecs.safetensors_file import write_tensors
from keras_bert_flow.conversion.directory_files import describe_vocabulary, read_shape
from keras_bert_flow.conversion.tables.table import find_table
from keras_bert_flow.text.tokenizers.files import read_word_piece

OTHERS = ("pytorch_model.bin", "tf_model.h5", "onnx/model.onnx", "flax_model.msgpack")


def write_hub_model(folder: Path) -> Path:
    """Write the directory, and return it."""
    folder.mkdir()
    table = find_table("bert")
    config = {"model_type": "bert", "architectures": ["BertModel"], "vocab_size": 8, "num_hidden_layers": 1}
    config |= {"num_attention_heads": 1, "hidden_size": 4, "intermediate_size": 6, "max_position_embeddings": 8}
    (folder / "config.json").write_text(json.dumps(config))
    shape = read_shape(config, "config.json")
    sizes = {name: tuple(getattr(shape, size) for size in sizes) for name, sizes in table.list_sizes(shape)}
    write_tensors(folder / "model.safetensors", {name: np.ones(size, "f4") for name, size in sizes.items()})
    (folder / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\nc\n")
    tokenizer = read_word_piece(folder / "vocab.txt", True)
    (folder / "tokenizer_config.json").write_bytes(describe_vocabulary(tokenizer, 8))
    for name in OTHERS:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"not to be fetched")
    return folder

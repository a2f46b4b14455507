"""KerasHub's model families: names of classes, settings and variables, and what its classes compute.

Source: keras_hub 0.32, src/models/<family>/<family>_{backbone,masked_lm,text_classifier,text_embedder}.py, and
src/layers/modeling/{transformer_encoder,masked_lm_head,token_and_position_embedding}.py.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from keras_bert_flow.conversion.tables.table import POOLER, FamilyTable, Tensors, dense, norm, split_fused
from keras_bert_flow.layers.shape import EncoderShape
from keras_bert_flow.models.families.family import BLOCK, EMBEDDING_PROJECTION
from keras_bert_flow.models.saved_as import CLASSIFIER_HEAD, MASKED_LM_HEAD

MODEL_WEIGHTS, TASK_WEIGHTS = "model.weights.h5", "task.weights.h5"
MASKED_LM, CLASSIFIER, EMBEDDER = "MaskedLM", "TextClassifier", "TextEmbedder"
HEAD_EPSILON = 1e-5  # of every masked-LM head, whatever the encoder's
WORD_PIECE, BYTE_PAIRS, SENTENCE_PIECE = "WordPiece", "byte-level BPE", "SentencePiece"
_BLOCK_LAYERS = {
    "attention/query_key_value": "_self_attention_layer/{query,key,value}_dense",
    "attention/output": "_self_attention_layer/output_dense",
    "attention_layer_norm": "_self_attention_layer_norm",
    "intermediate": "_feedforward_intermediate_dense",
    "output": "_feedforward_output_dense",
    "output_layer_norm": "_feedforward_layer_norm",
}
# The kernels and biases of these layers have an axis for heads.
_ATTENTION_SIZES = {
    "attention/query_key_value": (("hidden_dim", "num_heads", "head_dim"), ("num_heads", "head_dim")),
    "attention/output": (("num_heads", "head_dim", "hidden_dim"), ("hidden_dim",)),
}
_SEPARATE = {
    "token_embedding": "reversible_embedding",
    "embeddings/position_embedding": "position_embedding",
    "embeddings/segment_embedding": "embedding",
    "embeddings/layer_norm": "layer_normalization",
}
_TOGETHER = {
    "token_embedding": "token_and_position_embedding/token_embedding",
    "embeddings/position_embedding": "token_and_position_embedding/position_embedding",
    "embeddings/layer_norm": "layer_normalization",
}
_MASKED_LM_LAYERS = {
    "mlm_transform/dense": "masked_lm_head/_intermediate_dense",
    "mlm_transform/layer_norm": "masked_lm_head/_intermediate_layer_norm",
    "mlm": "masked_lm_head",
}
_HEAD_TENSORS = {
    "mlm_transform/dense": dense("", "embedding_dim", "hidden_dim"),
    "mlm_transform/layer_norm": norm("", "embedding_dim"),
    "mlm": Tensors("", (), ("vocabulary_size",)),
    "classifier": dense("", "num_classes", "hidden_dim"),
}
_SETTINGS = {
    "vocabulary_size": "vocabulary_size",
    "num_layers": "num_layers",
    "num_heads": "num_heads",
    "hidden_dim": "hidden_dim",
    "intermediate_dim": "intermediate_dim",
    "dropout_rate": "dropout",
    "max_positions": "max_sequence_length",
}


class Place(NamedTuple):
    """Location of a Hugging Face tensor in a KerasHub preset.

    Attributes:
        file: `MODEL_WEIGHTS` or `TASK_WEIGHTS`.
        name: name of the variable in the file.
        shape: shape of the tensor.
        shape_there: shape of the variable.
        is_kernel: whether the tensor is transposed before it is reshaped.
    """

    file: str
    name: str
    shape: tuple[int, ...]
    shape_there: tuple[int, ...]
    is_kernel: bool


@dataclass(frozen=True)
class HubFamily:
    """KerasHub's names for a family, and what its classes compute.

    Attributes:
        prefix: prefix of the classes, such as `Bert` in `BertBackbone`.
        module: module under `keras_hub.src.models`.
        settings: fields of the shape → arguments of the backbone.
        embeddings: our layers → KerasHub's in the backbone; the layers of the pooler and of `EMBEDDING_PROJECTION` are
            numbered in the order of the model.
        has_pooler: whether the backbone has a pooler.
        hidden_act, layer_norm_epsilon: of the encoder; its class takes no others.
        mlm_hidden_act: activation of the masked-LM head.
        heads: class → our layers → KerasHub's in the task.
        options: further arguments of the backbone, with the only value supported here.
        tokenizer: kind of tokenizer.
        folds_positions: whether positions are counted from the first token, and position embeddings include the
            embedding of the only segment.
        classifier_rate: learning rate of a classifier that is compiled without one; 5e-5 in other tasks.
    """

    prefix: str
    module: str
    settings: Mapping[str, str]
    embeddings: Mapping[str, str]
    has_pooler: bool
    hidden_act: str
    layer_norm_epsilon: float = 1e-12
    mlm_hidden_act: str = "gelu"
    heads: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    tokenizer: str = WORD_PIECE
    folds_positions: bool = False
    classifier_rate: float = 5e-5


_SEGMENTED = _SETTINGS | {"num_segments": "num_segments"}
_BERT_HEADS = {MASKED_LM: _MASKED_LM_LAYERS, CLASSIFIER: {"classifier": "dense"}}
_POOLING_HEADS = {MASKED_LM: _MASKED_LM_LAYERS, CLASSIFIER: {POOLER: "dense", "classifier": "dense_1"}}
HUB_FAMILIES = {
    "bert": HubFamily("Bert", "bert", _SEGMENTED, _SEPARATE, True, "gelu_tanh", heads=_BERT_HEADS | {EMBEDDER: {}}),
    "albert": HubFamily(
        "Albert",
        "albert",
        _SEGMENTED | {"num_groups": "num_groups", "embedding_dim": "embedding_dim"},
        _SEPARATE | {EMBEDDING_PROJECTION: "dense"},
        True,
        "gelu_tanh",
        mlm_hidden_act="gelu_tanh",
        heads=_BERT_HEADS,
        options={"num_inner_repetitions": 1},
        tokenizer=SENTENCE_PIECE,
        classifier_rate=1e-5,
    ),
    "distilbert": HubFamily("DistilBert", "distil_bert", _SETTINGS, _TOGETHER, False, "gelu", heads=_POOLING_HEADS),
    "electra": HubFamily(
        "Electra",
        "electra",
        _SEGMENTED | {"vocabulary_size": "vocab_size", "embedding_dim": "embedding_dim"},
        _SEPARATE | {EMBEDDING_PROJECTION: "dense"},
        True,
        "gelu_tanh",
    ),
    "roberta": HubFamily(
        "Roberta",
        "roberta",
        _SETTINGS,
        _TOGETHER,
        False,
        "gelu",
        1e-5,
        heads=_POOLING_HEADS,
        tokenizer=BYTE_PAIRS,
        folds_positions=True,
    ),
}


def list_places(
    table: FamilyTable, shape: EncoderShape, architecture: str, task: str | None, num_classes: int = 0
) -> dict[str, Place]:
    """Return the location of each tensor of a model, by Hugging Face's names without a prefix.

    Args:
        architecture: class of `transformers`, without the family.
        task: class of KerasHub, one of `HubFamily.heads`; None without a head.
        num_classes: number of classes of a classifier.
    """
    hub = HUB_FAMILIES[table.family]
    parts = {**table.embeddings, **{f"{BLOCK}{layer}": tensors for layer, tensors in table.list_block(shape).items()}}
    parts |= {**_HEAD_TENSORS, **table.pooler}
    head = hub.heads[task] if task else {}
    layers = [(MODEL_WEIGHTS, *entry) for entry in _list_encoder(hub, table, shape)]
    names = table.name_heads(MASKED_LM_HEAD | CLASSIFIER_HEAD, architecture) | {POOLER: table.name_pooler(architecture)}
    layers += [(TASK_WEIGHTS, layer, names[layer], f"layers/{place}") for layer, place in head.items()]

    def measure(sizes: tuple[str, ...]) -> tuple[int, ...]:
        return tuple(num_classes if size == "num_classes" else getattr(shape, size) for size in sizes)

    found = {}
    for file, layer, theirs, place in layers:
        for name, there in zip(split_fused(theirs), split_fused(place), strict=True):
            for number, (suffix, sizes, sizes_there) in enumerate(_list_variables(layer, parts[layer])):
                is_kernel = suffix == "weight" and len(sizes) == 2 and bool(parts[layer].bias)
                variable = f"{there}/{number}"
                found[f"{name}.{suffix}"] = Place(file, variable, measure(sizes), measure(sizes_there), is_kernel)
    return found


def _list_encoder(hub: HubFamily, table: FamilyTable, shape: EncoderShape) -> Iterator[tuple[str, str, str]]:
    """Yield our, Hugging Face's and KerasHub's name of each backbone layer; a block's layers as `BLOCK` + layer."""
    names = table.name_encoder(shape)
    for layer, place in hub.embeddings.items():
        if layer != EMBEDDING_PROJECTION or shape.projects_embeddings:
            yield layer, names[layer], f"layers/{place}"
    if hub.has_pooler:
        number = "_1" if EMBEDDING_PROJECTION in hub.embeddings and shape.projects_embeddings else ""
        yield POOLER, names[POOLER], f"layers/dense{number}"
    for index in range(shape.num_blocks):
        number = f"_{index}" if index else ""
        for layer, place in _BLOCK_LAYERS.items():
            yield f"{BLOCK}{layer}", names[f"{BLOCK}{index}/{layer}"], f"layers/transformer_encoder{number}/{place}"


def _list_variables(layer: str, tensors: Tensors) -> list[tuple[str, tuple[str, ...], tuple[str, ...]]]:
    """Return the suffix of each tensor of a layer, its sizes, and the sizes of the variable."""
    kernel, bias = tensors.weight, tensors.bias
    if layer.removeprefix(BLOCK) in _ATTENTION_SIZES:
        kernel, bias = _ATTENTION_SIZES[layer.removeprefix(BLOCK)]
    elif len(kernel) == 2 and bias:
        kernel = kernel[::-1]
    elif kernel[:1] == ("num_position_rows",):
        kernel = ("max_positions", *kernel[1:])  # without the positions before the first token
    variables = [("weight", tensors.weight, kernel), ("bias", tensors.bias, bias)]
    return [variable for variable in variables if variable[1]]

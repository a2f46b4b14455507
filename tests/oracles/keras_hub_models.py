"""Small models of KerasHub, and ours of the same kinds."""

import keras
import keras_hub
import numpy as np

import keras_bert_flow as kbf
from tests.oracles import numpy_bert
from tests.oracles.small_bert import SMALL, make_inputs

THEIRS = {name: size for name, size in SMALL.items() if name != "max_positions"} | {"max_sequence_length": 16}
FAMILIES = {
    "bert": ("Bert", THEIRS),
    "albert": ("Albert", THEIRS | {"embedding_dim": 10, "num_groups": 2}),
    "distilbert": ("DistilBert", THEIRS),
    "electra": (
        "Electra",
        {name if name != "vocabulary_size" else "vocab_size": size for name, size in THEIRS.items()}
        | {"embedding_dim": 10},
    ),
    "roberta": ("Roberta", THEIRS),
}
OURS = {
    "Backbone": kbf.Backbone,
    "MaskedLM": kbf.MaskedLM,
    "TextClassifier": kbf.TextClassifier,
    "TextEmbedder": kbf.TextEmbedder,
}
OPTIONS = {"TextClassifier": {"num_classes": 3}, "TextEmbedder": {"pooling_mode": "max", "normalize": False}}
CASES = [
    ("bert", "Backbone"),
    ("bert", "MaskedLM"),
    ("bert", "TextClassifier"),
    ("bert", "TextEmbedder"),
    ("albert", "MaskedLM"),
    ("albert", "TextClassifier"),
    ("distilbert", "MaskedLM"),
    ("distilbert", "TextClassifier"),
    ("electra", "Backbone"),
    ("roberta", "Backbone"),
    ("roberta", "MaskedLM"),
    ("roberta", "TextClassifier"),
]


def find_class(family, task):
    """Return the class of KerasHub."""
    return getattr(keras_hub.models, FAMILIES[family][0] + task)


def make_theirs(family, task):
    """Return a model of KerasHub with weights that no default hides."""
    model = find_class(family, "Backbone")(**FAMILIES[family][1])
    if task != "Backbone":
        model = find_class(family, task)(backbone=model, **OPTIONS.get(task, {}))
    numpy_bert.randomise_weights(model, 3)
    return model


def make_rows(seed=0):
    """Return ragged rows of tokens and positions; none is empty, of which the vector of an embedder is no number."""
    return {name: value[:3] for name, value in make_inputs(seed, masks_per_sequence=4).items()}


def call(model, inputs):
    """Return the outputs of a model of either kind by name, those that both have; without a trace."""
    outputs = model({name: inputs[name] for name in model.input}, training=False)
    if not isinstance(outputs, dict):
        outputs = {"sequence_output": outputs}
    outputs = {"sequence_output" if name == "mlm" else name: value for name, value in outputs.items()}
    return {name: np.asarray(keras.ops.convert_to_numpy(value)) for name, value in outputs.items()}


def assert_same(theirs, ours, atol):
    """Compare outputs; a backbone of RoBERTa or DistilBERT has no pooled one in KerasHub."""
    for name in theirs.keys() & ours.keys():
        np.testing.assert_allclose(ours[name], theirs[name], atol=atol, rtol=0)
    assert "sequence_output" in theirs.keys() & ours.keys()

"""Make a small model of each task, with inputs and labels that fit it."""

from dataclasses import dataclass
from functools import partial

import keras
import numpy as np

import keras_bert_flow as kbf
from tests.oracles import numpy_bert
from tests.oracles.small_bert import LENGTHS, SMALL, make_inputs

RNG_SEED = 5


@dataclass(frozen=True)
class Case:
    """A model of a task.

    Attributes:
        make: a function of the backbone.
        output_shape: of four rows of nine tokens.
        use_pooler: what the backbone must have.
        texts: how many a row has; None where it is one, without an axis for it.
    """

    make: partial
    output_shape: tuple
    use_pooler: bool
    texts: int | None = None


CASES = {
    "classification": Case(partial(kbf.TextClassifier, num_classes=3, labels=["no", "?", "yes"]), (4, 3), True),
    "regression": Case(partial(kbf.TextRegressor, dropout_rate=0.3), (4,), True),
    "multi_label": Case(partial(kbf.MultiLabelClassifier, num_classes=3, labels=["a", "b", "c"]), (4, 3), True),
    "token_classification": Case(
        partial(kbf.TokenClassifier, num_classes=3, labels=["O", "B-X", "I-X"]), (4, 9, 3), False
    ),
    "question_answering": Case(partial(kbf.QuestionAnswerer), {"start": (4, 9), "end": (4, 9)}, False),
    "multiple_choice": Case(partial(kbf.MultipleChoice), (4, 3), True, texts=3),
    "embedding": Case(partial(kbf.TextEmbedder), (4, 24), False),
    "sentence_embedding": Case(partial(kbf.PairEmbedder), (4, 2, 24), False, texts=2),
    "cosine_pairs": Case(partial(kbf.PairEmbedder, objective="cosine", pooling="max"), (4, 2, 24), False, texts=2),
}


def make_task_model(kind, seed=7, **settings):
    """Return the model of a case with weights that no default hides; `settings` are of the backbone."""
    case = CASES[kind]
    model = case.make(kbf.Backbone(**SMALL | {"num_layers": 1, "use_pooler": case.use_pooler} | settings))
    numpy_bert.randomise_weights(model, seed)
    return model


def call(model, inputs):
    """Return the outputs by name, `output` where there is one, as numpy; without a trace, which would take seconds."""
    outputs = model(inputs, training=False)
    outputs = outputs if isinstance(outputs, dict) else {"output": outputs}
    return {name: keras.ops.convert_to_numpy(value) for name, value in outputs.items()}


def make_task_inputs(kind, seed=0):
    """Return four ragged rows, the last of them empty; of several texts a row each is of another length."""
    texts = CASES[kind].texts
    if texts is None:
        return make_inputs(seed)
    # The i-th text of a row is the one i rows further on, so that each row has another one empty, or none.
    several = [make_inputs(seed + place) for place in range(texts)]
    return {
        name: np.stack([np.roll(inputs[name], place, axis=0) for place, inputs in enumerate(several)], axis=1)
        for name in several[0]
    }


def make_task_labels(kind):
    """Return labels for `make_task_inputs`; None where there need be none."""
    rng, rows = np.random.default_rng(RNG_SEED), len(LENGTHS)
    if kind in ("embedding", "sentence_embedding"):
        return None
    if kind == "question_answering":
        return {"start": np.array([3, 0, 0, 0]), "end": np.array([7, 3, 0, 0])}
    if kind == "multiple_choice":
        return np.array([2, 0, 1, 2])  # not of filler
    shape = {"multi_label": (rows, 3), "token_classification": (rows, max(LENGTHS))}.get(kind, (rows,))
    if kind in ("regression", "cosine_pairs"):
        return rng.uniform(-1, 1, shape).astype("float32")
    return rng.integers(0, 2 if kind == "multi_label" else 3, shape)

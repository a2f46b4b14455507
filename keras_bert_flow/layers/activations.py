"""The two GELU activations of BERT, by name."""

import keras

from keras_bert_flow.backends.fusion import fuse

HIDDEN_ACTIVATIONS = ("gelu", "gelu_tanh")


def get_activation(hidden_act: str):
    """Return an activation function by name.

    `gelu` is the erf form of the 2018 release. `gelu_tanh` is the approximation that google-research/bert adopted in
    February 2019 and used for its 24 small models of 2020.

    Raises:
        ValueError: the name is neither of the two.
    """
    if hidden_act == "gelu":
        return _gelu_erf
    if hidden_act == "gelu_tanh":
        return _gelu_tanh
    raise ValueError(
        f"`hidden_act` must be one of {', '.join(HIDDEN_ACTIVATIONS)}. Received: hidden_act={hidden_act!r}. Try 'gelu'."
    )


def get_training_activation(hidden_act: str):
    """Return the same function with a cheaper gradient, for inputs of few shapes; see `fusion.fuse`."""
    return _TRAINING_FORMS[get_activation(hidden_act)]


def _gelu_erf(inputs):
    return keras.ops.gelu(inputs, approximate=False)


def _gelu_tanh(inputs):
    return keras.ops.gelu(inputs, approximate=True)


_TRAINING_FORMS = {function: fuse(function) for function in (_gelu_erf, _gelu_tanh)}

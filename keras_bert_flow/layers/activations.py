"""Name the two GELUs of BERT."""

import keras

from keras_bert_flow.backends.fusion import fuse

HIDDEN_ACTIVATIONS = ("gelu", "gelu_tanh")


def get_activation(hidden_act: str):
    """Return the activation function of a name.

    `gelu` is the erf form of the 2018 release, `gelu_tanh` the approximation that google-research/bert took up in
    February 2019 and that its 24 small models of 2020 came with.

    Raises:
        ValueError: the name is neither.
    """
    if hidden_act == "gelu":
        return _gelu_erf
    if hidden_act == "gelu_tanh":
        return _gelu_tanh
    raise ValueError(
        f"`hidden_act` must be one of {', '.join(HIDDEN_ACTIVATIONS)}. Received: hidden_act={hidden_act!r}. Try 'gelu'."
    )


def get_training_activation(hidden_act: str):
    """Return the same function in a form whose gradient is cheaper, for inputs of few shapes; see `fusion.fuse`."""
    return _TRAINING_FORMS[get_activation(hidden_act)]


def _gelu_erf(inputs):
    return keras.ops.gelu(inputs, approximate=False)


def _gelu_tanh(inputs):
    return keras.ops.gelu(inputs, approximate=True)


_TRAINING_FORMS = {function: fuse(function) for function in (_gelu_erf, _gelu_tanh)}

"""Serialise one `tf.train.Example` by protobuf, of any type of feature: what TensorFlow writes, byte for byte."""

from collections.abc import Mapping

import numpy as np

from keras_bert_flow.records.example import Example


def encode_example(features: Mapping[str, np.ndarray]) -> bytes:
    """Serialise named one-dimensional arrays; the same features give the same bytes (keys are sorted).

    Raises:
        TypeError: an array is neither integers, floats nor bytes objects.
    """
    example = Example()
    for name, values in features.items():
        feature = example.features.feature[name]
        if values.dtype.kind in "iub":
            feature.int64_list.value.extend((values + 0).tolist())  # protobuf is going to refuse booleans
        elif values.dtype.kind == "f":
            feature.float_list.value.extend(values.tolist())
        elif values.dtype.kind in "OS":
            feature.bytes_list.value.extend(values.tolist())
        else:
            raise TypeError(f"A feature must hold integers, floats or bytes. Received: {name} of {values.dtype}.")
    return example.SerializeToString(deterministic=True)

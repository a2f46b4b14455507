"""Read `tf.train.Example` without TensorFlow; `batches` writes it.

The messages have TensorFlow's field numbers and types (tensorflow/core/example/feature.proto and example.proto) under
a package name of our own: the bytes are the same, and both may be loaded in one process.
"""

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "keras_bert_flow"
_FIELD = descriptor_pb2.FieldDescriptorProto


def decode_example(record: bytes) -> dict[str, np.ndarray]:
    """Read the features of a record: int64, float32 or object (bytes) arrays by name.

    Raises:
        ValueError: the bytes are no `tf.train.Example`.
    """
    try:
        example = Example.FromString(record)
    except Exception as error:  # protobuf's DecodeError has another base class in each of its implementations
        raise ValueError(f"A record must be a tf.train.Example. Received: {len(record)} other bytes.") from error
    return {name: _to_array(feature) for name, feature in example.features.feature.items()}


def _to_array(feature) -> np.ndarray:
    kind = feature.WhichOneof("kind")
    values = getattr(feature, kind or "int64_list").value
    return np.array(values, _DTYPES[kind or "int64_list"])


def _make_example_class():
    file = descriptor_pb2.FileDescriptorProto(name="keras_bert_flow/example.proto", package=_PACKAGE, syntax="proto3")
    for name, value_type in (
        ("BytesList", _FIELD.TYPE_BYTES),
        ("FloatList", _FIELD.TYPE_FLOAT),
        ("Int64List", _FIELD.TYPE_INT64),
    ):
        _add_field(file.message_type.add(name=name), "value", 1, value_type, repeated=True)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(("BytesList", "FloatList", "Int64List"), start=1):
        field = _add_field(feature, name.removesuffix("List").lower() + "_list", number, _FIELD.TYPE_MESSAGE, name)
        field.oneof_index = 0
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry")
    entry.options.map_entry = True
    _add_field(entry, "key", 1, _FIELD.TYPE_STRING)
    _add_field(entry, "value", 2, _FIELD.TYPE_MESSAGE, "Feature")
    _add_field(features, "feature", 1, _FIELD.TYPE_MESSAGE, "Features.FeatureEntry", repeated=True)
    _add_field(file.message_type.add(name="Example"), "features", 1, _FIELD.TYPE_MESSAGE, "Features")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Example"))


def _add_field(message, name, number, value_type, type_name=None, repeated=False):
    label = _FIELD.LABEL_REPEATED if repeated else _FIELD.LABEL_OPTIONAL
    field = message.field.add(name=name, number=number, type=value_type, label=label)
    if type_name:
        field.type_name = f".{_PACKAGE}.{type_name}"
    return field


_DTYPES = {"int64_list": np.int64, "float_list": np.float32, "bytes_list": object}
Example = _make_example_class()

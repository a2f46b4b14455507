"""Read and write one `tf.train.Example` by protobuf, of any type of feature: what TensorFlow writes, byte for byte."""

from collections.abc import Mapping

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

_PACKAGE = "keras_bert_flow"
_FIELD = descriptor_pb2.FieldDescriptorProto
_DTYPES = {"int64_list": np.int64, "float_list": np.float32, "bytes_list": object}


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


def decode_by_protobuf(record: bytes) -> dict[str, np.ndarray]:
    """Read the features as protobuf does; its own DecodeError where it refuses the bytes.

    An entry with a field that is none of its own is refused as well. upb, the implementation that runs here, keeps the
    whole entry as an unknown field of `Features`, which gives it away; others skip the field.
    """
    features = {}
    message = Example.FromString(record).features
    if any((field.field_number, field.wire_type) == (1, 2) for field in UnknownFieldSet(message)):
        raise DecodeError("an entry has an unknown field")
    for name, feature in message.feature.items():
        kind = feature.WhichOneof("kind") or "int64_list"
        features[name] = np.array(getattr(feature, kind).value, _DTYPES[kind])
    return features


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


Example = _make_example_class()

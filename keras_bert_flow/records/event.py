"""Write and read the scalars of TensorBoard's event files without TensorFlow or TensorBoard.

The messages have the field numbers and types of tensorflow/core/util/event.proto and framework/summary.proto, under a
package name of our own; see `records.example`. Only what a scalar needs is there. The file is one of TFRecords.
"""

from collections.abc import Mapping

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_PACKAGE = "keras_bert_flow.events"
_VERSION = "brain.Event:2"  # what the first record of a file says
_FIELD = descriptor_pb2.FieldDescriptorProto


def encode_header(wall_time: float) -> bytes:
    """Return the first record of a file; `wall_time` in seconds since 1970."""
    return Event(wall_time=wall_time, file_version=_VERSION).SerializeToString(deterministic=True)


def encode_scalars(step: int, wall_time: float, scalars: Mapping[str, float]) -> bytes:
    """Return the record of a step; values are float32 there."""
    event = Event(wall_time=wall_time, step=step)
    for tag, value in scalars.items():
        event.summary.value.add(tag=tag, simple_value=value)
    return event.SerializeToString(deterministic=True)


def _make_event_class():
    file = descriptor_pb2.FileDescriptorProto(name="keras_bert_flow/event.proto", package=_PACKAGE, syntax="proto3")
    value = file.message_type.add(name="Value")
    _add_field(value, "tag", 1, _FIELD.TYPE_STRING)
    _add_field(value, "simple_value", 2, _FIELD.TYPE_FLOAT).oneof_index = 0
    value.oneof_decl.add(name="value")
    summary = file.message_type.add(name="Summary")
    _add_field(summary, "value", 1, _FIELD.TYPE_MESSAGE, "Value").label = _FIELD.LABEL_REPEATED
    event = file.message_type.add(name="Event")
    _add_field(event, "wall_time", 1, _FIELD.TYPE_DOUBLE)
    _add_field(event, "step", 2, _FIELD.TYPE_INT64)
    _add_field(event, "file_version", 3, _FIELD.TYPE_STRING).oneof_index = 0
    _add_field(event, "summary", 5, _FIELD.TYPE_MESSAGE, "Summary").oneof_index = 0
    event.oneof_decl.add(name="what")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.Event"))


def _add_field(message, name, number, value_type, type_name=None):
    field = message.field.add(name=name, number=number, type=value_type, label=_FIELD.LABEL_OPTIONAL)
    if type_name:
        field.type_name = f".{_PACKAGE}.{type_name}"
    return field


Event = _make_event_class()

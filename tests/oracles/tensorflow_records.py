"""Read and write examples and record files with TensorFlow.

`main` reads of a folder `cases.json` ({case: {feature: [kind, values]}}, bytes as hexadecimal digits), `ours/<case>`
and `ours.tfrecord`; it writes `theirs/<case>`, `theirs.tfrecord` with the same records, and `seen.json`: what it saw in
ours.
"""

import json
from pathlib import Path

LISTS = {"int": ("int64_list", "Int64List"), "float": ("float_list", "FloatList"), "bytes": ("bytes_list", "BytesList")}


def main(folder: Path) -> None:
    import tensorflow as tf

    def make_feature(kind: str, values: list):
        values = (
            [bytes.fromhex(value) for value in values]
            if kind == "bytes"
            else [float(v) for v in values]
            if kind == "float"
            else values
        )
        field, name = LISTS[kind]
        return tf.train.Feature(**{field: getattr(tf.train, name)(value=values)})

    def describe(feature) -> list:
        kind = {field: kind for kind, (field, _) in LISTS.items()}[feature.WhichOneof("kind")]
        values = list(getattr(feature, LISTS[kind][0]).value)
        return [
            kind,
            [value.hex() for value in values]
            if kind == "bytes"
            else [str(v) for v in values]
            if kind == "float"
            else values,
        ]

    (folder / "theirs").mkdir()
    seen = {"examples": {}}
    for case, features in json.loads((folder / "cases.json").read_text()).items():
        made = {name: make_feature(*feature) for name, feature in features.items()}
        example = tf.train.Example(features=tf.train.Features(feature=made))
        (folder / "theirs" / case).write_bytes(example.SerializeToString(deterministic=True))
        ours = tf.train.Example.FromString((folder / "ours" / case).read_bytes())
        seen["examples"][case] = {name: describe(feature) for name, feature in ours.features.feature.items()}
    records = [record.numpy() for record in tf.data.TFRecordDataset(str(folder / "ours.tfrecord"))]
    seen["records"] = [record.hex() for record in records]
    with tf.io.TFRecordWriter(str(folder / "theirs.tfrecord")) as writer:
        for record in records:
            writer.write(record)
    (folder / "seen.json").write_text(json.dumps(seen))

"""Write files of plain records with TensorFlow: `example_writer.py FILES.json`, a list of path, version and rows."""

import json
import sys

NAMES = {"1": {}, "2": {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}}


def main(files: str) -> None:
    import tensorflow as tf

    def encode(name: str, values: list) -> tf.train.Feature:
        if name == "masked_lm_weights":
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    with open(files) as listing:
        for path, version, rows in json.load(listing):
            with tf.io.TFRecordWriter(path) as writer:
                for row in rows:
                    features = {NAMES[version].get(name, name): encode(name, values) for name, values in row.items()}
                    example = tf.train.Example(features=tf.train.Features(feature=features))
                    writer.write(example.SerializeToString())


if __name__ == "__main__":
    main(*sys.argv[1:])

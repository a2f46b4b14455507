"""Write plain records with TensorFlow, by the names of a version: `example_writer.py ROWS.json FILE 1|2`."""

import json
import sys

NAMES = {"1": {}, "2": {"input_ids": "input_word_ids", "segment_ids": "input_type_ids"}}


def main(rows: str, path: str, version: str) -> None:
    import tensorflow as tf

    with open(rows) as file, tf.io.TFRecordWriter(path) as writer:
        for row in json.load(file):
            features = {}
            for name, values in row.items():
                if name == "masked_lm_weights":
                    feature = tf.train.Feature(float_list=tf.train.FloatList(value=values))
                else:
                    feature = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
                features[NAMES[version].get(name, name)] = feature
            writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())


if __name__ == "__main__":
    main(*sys.argv[1:])

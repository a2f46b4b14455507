"""Write checkpoints with TensorFlow, and read ours: `tensorflow_checkpoints.py FOLDER`.

FOLDER gets `plain` and `sharded`, of variables of many shapes and types, some of them partitioned, and `expected.npz`;
and what is in the checkpoint `ours`, as `read.npz`.
"""

import sys
from pathlib import Path

import numpy as np


def write(folder: Path) -> None:
    import tensorflow as tf

    tf1 = tf.compat.v1
    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 3
    )
    rng = np.random.default_rng(0)
    shapes = [rng.integers(1, 9, rng.integers(0, 4)) for _ in range(150)]
    values = {f"bert/encoder/layer_{n}/query/kernel": rng.normal(size=s).astype("f4") for n, s in enumerate(shapes)}
    values |= {
        "half": rng.normal(size=(3, 5)).astype("f2"),
        "double": rng.normal(size=7),
        "none": np.zeros((0, 4), "f4"),
    }
    values |= {"global_step": np.int64(7), "small": np.arange(-3, 3, dtype="i4")}
    with tf1.Graph().as_default(), tf1.Session() as session:
        for number, (name, value) in enumerate(values.items()):
            with tf.device(f"/cpu:{number % 3}"):  # a shard each, where they are asked for
                tf1.get_variable(name, initializer=value)
        tf1.get_variable("upper_half", initializer=tf.constant(values["half"], tf.bfloat16))
        cut = {
            name: tf1.get_variable(
                name,
                shape=(100, 30),
                initializer=tf1.random_normal_initializer(),
                partitioner=tf1.fixed_size_partitioner(parts, axis=axis),
            )
            for name, parts, axis in (("rows", 7, 0), ("columns", 4, 1), ("uncut", 1, 0))
        }
        session.run(tf1.global_variables_initializer())
        values |= session.run({name: tf.convert_to_tensor(variable) for name, variable in cut.items()})
        values["upper_half"] = session.run(tf.cast(tf.cast(values["half"], tf.bfloat16), tf.float32))
        tf1.train.Saver().save(session, str(folder / "plain"))
        tf1.train.Saver(sharded=True).save(session, str(folder / "sharded"))
    np.savez(folder / "expected.npz", **values)


def read(folder: Path) -> None:
    import tensorflow as tf

    reader = tf.train.load_checkpoint(str(folder / "ours"))
    np.savez(folder / "read.npz", **{name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()})


if __name__ == "__main__":
    write(Path(sys.argv[1]))
    read(Path(sys.argv[1]))

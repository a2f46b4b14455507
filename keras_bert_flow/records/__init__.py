"""Pre-training records: the schema, `tf.train.Example` codec, TFRecord files and their index, manifests and publishing.

Read and written without TensorFlow.
"""

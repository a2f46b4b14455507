"""Experiment tracking: send the log of a run to MLflow or Weights & Biases, in a separate process.

No result depends on this package, and no stage imports it: a run starts `python -m keras_bert_flow.tracking`. It does
not import Keras.
"""

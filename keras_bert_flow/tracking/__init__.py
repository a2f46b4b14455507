"""Experiment loggers: what hands the log of a run to MLflow or Weights & Biases, in a process of its own.

No result depends on what is here, and no stage imports it: a run starts `python -m keras_bert_flow.tracking`. Without
Keras.
"""

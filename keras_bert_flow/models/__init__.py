"""Functional Keras models: the encoder, pre-training models and task heads, with their losses and metrics.

No files and no training loop here.
"""

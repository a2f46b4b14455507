"""Hugging Face's names for the settings and tensors of encoder families, and KerasHub's for the same; without Keras.

No table reads or writes a file.
"""

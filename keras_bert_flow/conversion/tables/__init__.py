"""Hugging Face's names for the settings and tensors of each encoder family, one per module; without Keras.

No table reads or writes a file.
"""

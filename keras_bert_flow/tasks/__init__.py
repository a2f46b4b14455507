"""Kinds of fine-tuning tasks: reading, encoding, decoding and official scores of each, without Keras."""

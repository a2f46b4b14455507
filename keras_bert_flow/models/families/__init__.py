"""Encoder families, one per file: the shape, and the names of the layers to build; importable without Keras."""

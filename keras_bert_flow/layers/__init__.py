"""Keras layers: embeddings, attention, encoder blocks, heads, pooling.

They use Keras' public API only; backend-specific code is in `backends/`.
"""

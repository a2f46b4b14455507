"""Keras layers: embeddings, attention, encoder blocks, heads, pooling.

Only Keras' public API; what depends on the backend is in `backends/`.
"""

"""Vectors of texts, learnt from pairs."""

"""Sentence embedding: vectors of texts, learnt from text pairs."""

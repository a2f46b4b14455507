"""Vocabularies: the vocabulary file, and the learner that makes one from word counts."""

"""Vocabularies: the file, and the learner that makes one from word counts."""

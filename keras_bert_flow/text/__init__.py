"""Text to token ids and masked instances: corpus readers, tokenizer, vocabulary learner, masking, objectives.

Pure functions; every random choice is keyed by (seed, document, copy).
"""

"""Task models, one per file: an encoder with a head, its losses and metrics.

A head takes its parts from the encoder and does not depend on the family.
"""

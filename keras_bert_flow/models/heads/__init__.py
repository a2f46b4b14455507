"""Models of tasks, one a file: an encoder with a head, its losses and metrics. A head asks the encoder for its pieces
and knows no family.
"""

"""Pre-training models, one per file: an encoder with the heads of an objective, their losses and metrics."""

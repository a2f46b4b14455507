"""Distillation: a smaller model learns from a larger one, on the records of pre-training."""

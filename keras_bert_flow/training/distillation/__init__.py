"""Knowledge distillation: train a smaller model from a larger one on pre-training records."""

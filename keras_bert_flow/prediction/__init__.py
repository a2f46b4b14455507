"""Prediction with fine-tuned models, masked language models and encoders."""

"""Extractive question answering: SQuAD files, context windows and metrics."""

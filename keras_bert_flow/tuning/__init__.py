"""Hyperparameter search: the search space, and the study that stores the trials; `flows` runs the trials.

Without Keras and without Prefect.
"""

"""Evaluation: scores of trained models, their baselines, and the report.

The metrics of each kind of task are with the task; this package compares models and writes reports.
"""

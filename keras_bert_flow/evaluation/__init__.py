"""Scores of trained models, their baselines, and the report.

Metrics of a kind of task are with the task; this room compares models and writes pages.
"""

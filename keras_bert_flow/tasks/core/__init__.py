"""Shared by all tasks: base class, text examples, features, model outputs, losses, metrics and saved tasks."""

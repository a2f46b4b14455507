"""What all kinds of tasks share: examples of texts, features, answers, losses, metrics, and a task beside its model."""

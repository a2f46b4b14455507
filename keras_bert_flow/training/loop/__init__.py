"""The training loop: `model.fit` in intervals, with logs, evaluations, checkpoints and stops between them."""

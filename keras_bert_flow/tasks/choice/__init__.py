"""Multiple choice: one of several texts."""

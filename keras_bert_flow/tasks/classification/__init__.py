"""Tasks on whole texts or pairs of them: one class, any number of labels, or a number."""

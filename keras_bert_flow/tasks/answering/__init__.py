"""Questions answered by a span of a context: SQuAD's files, windows, scores."""

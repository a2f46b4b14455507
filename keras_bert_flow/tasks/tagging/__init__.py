"""Token classification: CoNLL files, tagging schemes, windows, and span metrics."""
